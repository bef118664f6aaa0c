"""What URLs hold that nobody may see: user names, passwords and signatures stay out of messages, records and cards."""

import re
from typing import Any

_PASSWORD = re.compile(
    r"""(?<=://) [^\s:/?\#]* :                   # a user name
    (?! \d{1,5} (?:[/?\#\s"'),;:.\]}>] | $))     # but not a host and its port
    (?: (?!://) \S)* @                           # a password may hold anything, also / and @
    """,
    re.VERBOSE,
)
_TOKEN = re.compile(r"(?<=://)[^\s/?#]*@")
_END = r"[^\s'\"]*?(?=[:;,.)\]}]*(?:[\s'\"]|$))"  # of a URL: without the marks of the sentence it stands in
_QUERY = re.compile(rf"(?<=://)([^\s?'\"]*)\?(?=[^\s'\"]*[=&]){_END}")
_WEB_QUERY = re.compile(rf"(https?://[^\s?'\"]*)\?{_END}", re.IGNORECASE)  # elsewhere a ? may stand for a character


def redact(text: str) -> str:
    """A URL, or a message with URLs in it, without `user:password@` and without queries (`?signature=…`)."""
    if "://" not in text:
        return text
    for pattern, kept in ((_PASSWORD, ""), (_TOKEN, ""), (_QUERY, r"\1"), (_WEB_QUERY, r"\1")):
        text = pattern.sub(kept, text)
    return text


def has_password(url: str) -> bool:
    """Whether a URL names a user with a password."""
    return bool(_PASSWORD.search(url))


def redacted(value: Any) -> Any:
    """A value of JSON with every text in it redacted, keys too."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redacted(key): redacted(item) for key, item in value.items()}
    return [redacted(item) for item in value] if isinstance(value, list | tuple) else value
