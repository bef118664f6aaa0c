"""JSON objects, one on each line."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from adapt.corpus.files.contents import NOT_UTF8
from adapt.corpus.files.formats import Bad

NOT_AN_OBJECT = Bad("not a JSON object")
_DECODER = json.JSONDecoder()
_ENDS = ("\n", "\r\n", "")
"""What follows the value of a line, mostly."""


def object_of(line: bytes | Bad) -> Mapping[str, Any] | Bad:
    """The JSON object of a line, or the reason why it has none."""
    if isinstance(line, Bad):
        return line
    try:
        record = _parsed(line)
    except UnicodeDecodeError:
        return Bad(NOT_UTF8 if b"\0" not in line else "malformed JSON: zero bytes")
    except (ValueError, RecursionError):
        return Bad(_reason(line))
    return record if isinstance(record, dict) else NOT_AN_OBJECT


def _reason(line: bytes) -> str:
    """Why a line is not JSON."""
    if line.rstrip().endswith(b"},"):
        with suppress(ValueError, RecursionError):
            json.loads(line.rstrip()[:-1])
            return "malformed JSON: a comma follows the object"
    if line.lstrip().startswith(b"{'"):
        return "malformed JSON: names in single quotes"
    return "malformed JSON"


def _parsed(line: bytes) -> Any:
    """What `json.loads` makes of a line, in half the time where the line is as most are."""
    try:
        text = line.decode()
        value, end = _DECODER.raw_decode(text)
        is_whole = text[end:] in _ENDS
    except ValueError:  # another encoding, blanks before the value, or no JSON
        is_whole = False
    return value if is_whole else json.loads(line)
