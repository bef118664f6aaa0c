"""Reads lines, paragraphs and JSON objects of a whole file or of a range of bytes, in bounded memory.

The ranges [0, a), [a, b), [b, end) of a file together contain each of its lines once: a line belongs to the range in
which the line begins, and a paragraph to the range in which the blank line before the paragraph begins.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BufferedReader
from typing import Any

from adapt.corpus.files.formats import NOT_UTF8, Bad

TOO_LONG = Bad("longer than corpus.max_record_mib")


class Lines:
    """Iterates over the lines of a stream with their newlines. A line longer than the limit is replaced by `TOO_LONG`.

    Args:
        stream: the stream, positioned at its beginning; seekable if `start` is not 0.
        start: offset at or after which the first line begins [bytes].
        limit: maximum size of a line [bytes].
    """

    def __init__(self, stream: BufferedReader, start: int, limit: int) -> None:
        self.position = 0
        """Offset at which the next line begins [bytes]."""
        self._stream = stream
        self._limit = limit
        if start:
            stream.seek(start - 1)  # starts one byte earlier, so that a line that begins exactly at `start` is included
            self.position = start - 1
            self._pass_over()

    def __iter__(self) -> Iterator[bytes | Bad]:
        return self

    def __next__(self) -> bytes | Bad:
        line = self._stream.readline(self._limit + 1)
        if not line:
            raise StopIteration
        self.position += len(line)
        if len(line) > self._limit:
            if not line.endswith(b"\n"):
                self._pass_over()
            return TOO_LONG
        return line

    def _pass_over(self) -> None:
        """Skips the rest of the line, reading 1 MiB at a time."""
        while piece := self._stream.readline(1 << 20):
            self.position += len(piece)
            if piece.endswith(b"\n"):
                return


def lines(stream: BufferedReader, start: int, stop: int | None, limit: int) -> Iterator[bytes | Bad]:
    """Yields the lines that begin in bytes [start, stop) of a stream. The range has no end if `stop` is None."""
    reader = Lines(stream, start, limit)
    while (stop is None or reader.position < stop) and (line := next(reader, None)) is not None:
        yield line


def paragraphs(stream: BufferedReader, start: int, stop: int | None, limit: int) -> Iterator[bytes | Bad]:
    """Yields the paragraphs (separated by blank lines) that belong to the range [start, stop) of a stream [bytes].

    A paragraph belongs to the range in which the blank line before the paragraph begins. The first paragraph of a file
    belongs to the range that starts at 0. A paragraph longer than the limit [bytes] is yielded as `TOO_LONG`.
    """
    reader = Lines(stream, start, limit)
    paragraph: bytearray | Bad = bytearray()
    inside, begin = not start, reader.position
    for line in reader:
        if isinstance(line, bytes) and line.isspace():
            if inside and paragraph:
                yield _whole(paragraph)
            if stop is not None and begin >= stop:
                return
            paragraph, inside = bytearray(), True
        elif inside:
            paragraph = _longer(paragraph, line, limit)
        begin = reader.position
    if inside and paragraph:
        yield _whole(paragraph)


def _longer(paragraph: bytearray | Bad, line: bytes | Bad, limit: int) -> bytearray | Bad:
    if isinstance(paragraph, Bad) or isinstance(line, Bad) or len(paragraph) + len(line) > limit:
        return TOO_LONG
    paragraph += line
    return paragraph


def _whole(paragraph: bytearray | Bad) -> bytes | Bad:
    return paragraph if isinstance(paragraph, Bad) else bytes(paragraph)


NOT_AN_OBJECT = Bad("not a JSON object")
_DECODER = json.JSONDecoder()
_ENDS = ("\n", "\r\n", "")
"""Strings that may follow the JSON value of a line. Lines with another ending are parsed again by `json.loads`."""


def object_of(line: bytes | Bad) -> Mapping[str, Any] | Bad:
    """Returns the JSON object of a line, or the reason why the line is not a JSON object."""
    if isinstance(line, Bad):
        return line
    try:
        record = parse_line(line)
    except UnicodeDecodeError:
        return Bad(NOT_UTF8 if b"\0" not in line else "malformed JSON: zero bytes")
    except (ValueError, RecursionError):
        return Bad(_reason(line))
    return record if isinstance(record, dict) else NOT_AN_OBJECT


def _reason(line: bytes) -> str:
    """Returns the reason why a line is not valid JSON."""
    if line.rstrip().endswith(b"},"):
        with suppress(ValueError, RecursionError):
            json.loads(line.rstrip()[:-1])
            return "malformed JSON: a comma follows the object"
    if line.lstrip().startswith(b"{'"):
        return "malformed JSON: names in single quotes"
    return "malformed JSON"


def parse_line(line: bytes) -> Any:
    """Parses a line like `json.loads`, in half the time for usual lines (UTF-8, no white space around the value)."""
    try:
        text = line.decode()
        value, end = _DECODER.raw_decode(text)
        is_whole = text[end:] in _ENDS
    except ValueError:  # the line has another encoding, white space before the value, or no JSON
        is_whole = False
    return value if is_whole else json.loads(line)
