"""URLs as they may be stored and seen: passwords and signatures stay out of records and logs."""

import re

_USER = re.compile(r"(?<=://)[^/\s@]+@")
_QUERY = re.compile(r"(?<=://)([^\s?'\"]*)\?(?=[^\s'\"]*[=&])[^\s'\"]*")


def redact(text: str) -> str:
    """A URL, or a message with URLs in it, without `user:password@` and without queries (`?signature=…`)."""
    return _QUERY.sub(r"\1", _USER.sub("", text))
