"""Decodes HTML pages and finds their main text, without navigation, comments and footers."""

import codecs
import re

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_encoding

from adapt.corpus.documents.document_kinds import (
    BROKEN,
    HEADING,
    NO_ENCODING,
    NO_TEXT,
    UnreadableDocumentError,
    unmarked,
)

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DECLARED = re.compile(
    rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([\w.:-]+)|<\?xml[^>]{0,100}?encoding=["']([\w.:-]+)""", re.I
)
_HEAD_BYTES = 4096
"""Number of bytes in which a page declares its encoding. HTML demands the first 1,024."""
_HEADING_TAG = re.compile(r"<h[1-6](?:\s[^<>]*)?>", re.I)
_DAMAGE = 1000
"""A page with at most one invalid byte per this many bytes counts as UTF-8 with errors."""
_REPLACEMENT = "\ufffd"
_HEADING = "qzheadingqz"
"""Word that marks headings while the library extracts the text, because it removes characters for private use."""


def decoded(data: bytes, declared: str | None = None) -> str:
    """Decodes a page or another text of unknown encoding.

    Encodings are tried in this order: the byte order mark, UTF-16 if every other byte is mostly zero, UTF-8, the
    declared encoding, UTF-8 with a few invalid bytes, UTF-16 with any zero bytes, and the encoding that the bytes
    resemble. UTF-8 comes before the declaration, because text of another encoding is almost never valid UTF-8 and
    declarations are often wrong.

    Args:
        data: bytes of the page.
        declared: encoding that the server named; None to look for a declaration in the page.

    Raises:
        UnreadableDocumentError: the bytes are not text, or no encoding fits.
    """
    for mark, name in _BOMS:
        if data.startswith(mark):
            return data[len(codecs.BOM_UTF8) :].decode(errors="replace") if name == "utf-8" else _decode(data, name)
    if _has_zeros_of_utf16(data[:_HEAD_BYTES]) and (text := _without_mark(data)) is not None:
        return text  # ASCII letters in UTF-16 are valid UTF-8 too, with zero characters between them
    try:
        return data.decode()
    except UnicodeDecodeError:
        pass
    named = declared or _declaration(data)
    if named and (text := _tried(data, named)) is not None:
        return text
    text = data.decode(errors="replace")
    if text.count(_REPLACEMENT) * _DAMAGE <= len(data):
        return text
    if b"\0" in data[:_HEAD_BYTES] and (text := _without_mark(data)) is not None:
        return text
    resembled = detect_encoding(data)
    if resembled and (found := _tried(data, resembled)) is not None:
        return found
    raise UnreadableDocumentError(NO_ENCODING)


def main_text(html: str, whole: bool = False) -> str:
    """Returns the main text of a page, with a mark before each heading.

    Args:
        html: the decoded page.
        whole: whether all text is returned, as for the chapters of a book, instead of the main text. A chapter may have
            no text, such as a cover.

    Raises:
        UnreadableDocumentError: the page is binary data or has no main text.
    """
    if html.count("\0") * 100 > len(html):
        raise UnreadableDocumentError(BROKEN)
    # marked in the source, because finding the headings in the tree takes 20 times as long as extracting the text
    marked = _HEADING_TAG.sub(lambda tag: tag[0] + _HEADING, unmarked(html))
    text: str = extract_plain_text(
        marked, main_content=not whole, alt_texts=False, comments=False, post_meta=False, list_bullets=False
    )
    if not whole and not any(map(str.isalnum, text)):
        raise UnreadableDocumentError(NO_TEXT)
    return text.replace(_HEADING, HEADING)


def _declaration(data: bytes) -> str | None:
    match = _DECLARED.search(data[:_HEAD_BYTES])
    return (match[1] or match[2]).decode("ascii") if match else None


def _tried(data: bytes, encoding: str) -> str | None:
    """Decodes bytes, or returns None if the encoding is unknown or does not fit."""
    name = "cp1252" if encoding.lower() in ("iso-8859-1", "latin-1", "latin1", "ascii", "us-ascii") else encoding
    try:
        return data.decode(name)
    except (LookupError, UnicodeError):
        return None


def _has_zeros_of_utf16(head: bytes) -> bool:
    zeros, others = sorted((head[start::2].count(0) for start in (0, 1)), reverse=True)
    return zeros * 6 > len(head) and others * 10 < zeros


def _without_mark(data: bytes) -> str | None:
    """Decodes UTF-16 without a byte order mark, in which most Latin letters have a zero byte."""
    odd = data[1:_HEAD_BYTES:2].count(0) > data[0:_HEAD_BYTES:2].count(0)
    return _tried(data, "utf-16-le" if odd else "utf-16-be")


def _decode(data: bytes, name: str) -> str:
    text = _tried(data, name)
    if text is None:
        raise UnreadableDocumentError(NO_ENCODING)
    return text
