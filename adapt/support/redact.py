"""Removes credentials from messages, records, model cards and trackers: passwords, signatures, keys and tokens."""

import re
from typing import Any

TOKEN_FORM = re.compile(r"[\x21-\x7e]+")
"""Pattern of a valid token. If a token contains other characters, libraries print it in errors about HTTP headers."""
_LEFT_OUT = "***"
_HOST = r"\[[0-9a-fA-F:.%]+\]"  # an IPv6 address
_PASSWORD = re.compile(
    rf"""(?<=://) (?!{_HOST}) [^\s:/?\#]* :      # a user name
    (?! \d{{1,5}} (?:[/?\#\s"'),;:.\]}}>] | $))  # but not a host and its port
    (?: (?!://) \S)* @                           # a password may hold anything, also / and @
    """,
    re.VERBOSE,
)
_AZURE = r"(?<!abfs://)(?<!abfss://)(?<!wasb://)(?<!wasbs://)(?<!ABFS://)(?<!ABFSS://)(?<!WASB://)(?<!WASBS://)"
_USER = re.compile(rf"(?<=://){_AZURE}[^\s/?#]*@")  # excludes Azure's URLs, in which a container's name precedes the @
# matches the end of a URL, without the punctuation of the sentence around it
_END = r"[^\s'\"]*?(?=[:;,.)\]}]*(?:[\s'\"]|$))"
_QUERY = re.compile(rf"(?<=://)([^\s?'\"]*)\?(?=[^\s'\"]*[=&]){_END}")
_WEB_QUERY = re.compile(rf"(https?://[^\s?'\"]*)\?{_END}", re.IGNORECASE)  # in other schemes, ? may be a wildcard
_FRAGMENT = re.compile(rf"(?<=://)([^\s#'\"]*)\#(?=[^\s'\"]*=){_END}")

_SECRET_NAME = r"""
    [\w-]*(?:password|passwd|passphrase|secret|credentials?|signature)
    | [\w-]*(?:access|account|api|private|secret|shared)[_-]?key(?:[_-]?id)?
    | [\w-]*(?:access|api|auth|bearer|deploy|github|gitlab|hf|hub|job|oauth|refresh|security|session)[_-]?token
    | [\w-]*access[_-]?signature | x-(?:amz|goog)-credential | authorization | pwd | sig
    | (?-i: [A-Z0-9_]+_TOKEN )
"""
_BY_NAME = re.compile(
    rf"""(?<![\w-]) ({_SECRET_NAME}) (["']?\s*[:=]\s*["']?) (?:(?:Bearer|Basic|Token|SharedKey)\s+)?
    (?!\*\*\*) [^\s'"&;,{{}}\[\]()<>]+""",
    re.VERBOSE | re.IGNORECASE,
)
_NAME = re.compile(r"(?<![\w-])[\w-]+(?=[\"']?\s*[:=])")  # any name in the place of a name of `_BY_NAME`, found faster
_IS_SECRET_NAME = re.compile(_SECRET_NAME, re.VERBOSE | re.IGNORECASE)
_BEARER = re.compile(r"(?i)(?<![\w-])(Bearer\s+)(?!\*\*\*)[\w.~+/-]{12,}=*")
_KNOWN = re.compile(
    r"""(?<![A-Za-z0-9_-]) (?:
    hf_[A-Za-z0-9]{20,} | api_org_[A-Za-z0-9]{20,}                        # Hugging Face
    | (?:AKIA|ASIA)[A-Z0-9]{16}                                           # AWS
    | gh[oprsu]_[A-Za-z0-9]{30,} | github_pat_\w{30,} | glpat-[\w-]{20,}  # GitHub, GitLab
    | xox[abeoprs]-[\w-]{10,} | sk-(?:[a-z]+-)*[A-Za-z0-9_]{20,}          # Slack, OpenAI and others
    | AIza[\w-]{35} | ya29\.[\w-]{20,}                                    # Google
    | wandb_v\d+_\w{20,} | dapi[0-9a-f]{32}(?:-\d+)?                      # Weights & Biases, Databricks
    | eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+                                  # JSON web tokens
    ) (?![A-Za-z0-9])
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----(?:.|\n)*?(?:-----END[ ][A-Z ]*PRIVATE[ ]KEY-----|$)
    """,
    re.VERBOSE,
)
_IN_URLS = (_PASSWORD, ""), (_USER, ""), (_QUERY, r"\1"), (_WEB_QUERY, r"\1"), (_FRAGMENT, r"\1")


def redact(text: str) -> str:
    """Removes credentials from a message.

    URLs lose `user:password@`, queries (`?signature=…`) and fragments (`#access_token=…`). Values after the name of a
    secret (`api_key=…`, `Authorization: Bearer …`, `HF_TOKEN: …`) and tokens of well-known formats become `***`. A
    secret without a name or a typical format, such as a bare AWS secret key, cannot be recognized.
    """
    if "://" in text:
        for pattern, kept in _IN_URLS:
            text = pattern.sub(kept, text)
    if any(map(_IS_SECRET_NAME.fullmatch, _NAME.findall(text))):
        text = _BY_NAME.sub(r"\1\2***", text)
    return _KNOWN.sub(_LEFT_OUT, _BEARER.sub(r"\1***", text))


def has_password(url: str) -> bool:
    """Returns whether a URL contains a user name and a password."""
    return bool(_PASSWORD.search(url))


def names_secret(name: str) -> bool:
    """Returns whether the name of a field (`mine.api_key`) or of an environment variable is typical of a secret."""
    return bool(_IS_SECRET_NAME.fullmatch(name.rpartition(".")[2]))


def redacted(value: Any) -> Any:
    """Removes credentials from all texts and keys of a JSON value. A text under the name of a secret becomes `***`."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {
            redacted(key): _LEFT_OUT
            if isinstance(key, str) and isinstance(item, str) and item and names_secret(key)
            else redacted(item)
            for key, item in value.items()
        }
    return [redacted(item) for item in value] if isinstance(value, list | tuple) else value
