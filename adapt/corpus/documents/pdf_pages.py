"""Reads the pages of PDF files, without repeated headers and footers."""

import re
from collections import Counter
from collections.abc import Sequence

import pypdfium2
from pypdfium2 import PdfDocument, PdfiumError

from adapt.corpus.documents import document_kinds

_NEEDS_PASSWORD = {pypdfium2.raw.FPDF_ERR_PASSWORD, pypdfium2.raw.FPDF_ERR_SECURITY}
_HYPHEN = re.compile(r"[\ufffe\x02\u00ad]\s*")
"""A hyphen that divides a word at the end of a line. PDFium writes it as U+FFFE."""
_WRAPPED = re.compile(r"(?<=[^\s.!?:;])\n(?=[a-zà-öø-ÿ])")
"""A line break inside a sentence: the next line begins with a lower-case letter."""
_NUMBER = re.compile(r"\d+|\b[ivxlc]+\b", re.I)
_TWO_NUMBERS = re.compile(r"#[^/|]* [^/|]*#")
"""Two numbers in a table row, in text in which each number was replaced with #. A page number such as 3 / 10 does not
match."""
_MARGIN_LINES = 2
"""Number of lines at the top and at the bottom of a page that may be headers and footers."""
_FEWEST_PAGES = 3
"""Minimum number of pages on which a line must occur to count as a header or footer."""


def pdf_text(data: bytes, limits: document_kinds.DocumentLimits) -> str:
    """Returns the text of a PDF file, with a mark before each page.

    A file that opens without a password is read, even if it is encrypted. If broken pages are left out, the text
    contains the mark LACKS_PAGES.

    Raises:
        UnreadableDocumentError: the file needs a password, is broken or too long, or has no text.
    """
    if b"%PDF-" not in data[:1024]:
        raise document_kinds.UnreadableDocumentError(document_kinds.BROKEN)
    try:
        with PdfDocument(data) as document:
            pages = _pages(document, limits)
            return _marked(pages) + (document_kinds.LACKS_PAGES if len(pages) < len(document) else "")
    except PdfiumError as error:
        raise document_kinds.UnreadableDocumentError(
            document_kinds.ENCRYPTED if error.err_code in _NEEDS_PASSWORD else document_kinds.BROKEN
        ) from error


def _pages(document: PdfDocument, limits: document_kinds.DocumentLimits) -> list[str]:
    if len(document) > limits.max_pages:
        raise document_kinds.UnreadableDocumentError(document_kinds.TOO_LONG)
    pages, size = [], 0
    for number in range(len(document)):
        try:
            page = document[number]
            text_page = page.get_textpage()
            pages.append(text_page.get_text_bounded())
            text_page.close()
            page.close()
        except PdfiumError:
            continue
        size += len(pages[-1])
        if size > limits.max_bytes:
            raise document_kinds.UnreadableDocumentError(document_kinds.TOO_LARGE)
    if not pages and len(document):
        raise document_kinds.UnreadableDocumentError(document_kinds.BROKEN)
    if not any(character.isalnum() for page in pages for character in page):
        raise document_kinds.UnreadableDocumentError(document_kinds.SCANNED)
    return pages


def _marked(pages: Sequence[str]) -> str:
    lines = [document_kinds.unmarked(page).replace("\r\n", "\n").split("\n") for page in pages]
    bodies = ("\n".join(page) for page in without_margins(lines))
    return "\n\n".join(document_kinds.PAGE + _WRAPPED.sub(" ", _HYPHEN.sub("", body)) for body in bodies)


def without_margins(pages: Sequence[Sequence[str]]) -> list[list[str]]:
    """Removes headers and footers: lines at the top or bottom of at least half of the pages, and at least three pages.

    Lines that differ only in their numbers, such as page numbers, count as equal. Rows of numbers, as in tables, are an
    exception.
    """
    filled = [[line for line in page if line.strip()] for page in pages]
    counts = Counter(line for page in filled for line in {_pattern(line) for line in _margins(page)})
    least = max(_FEWEST_PAGES, (len(pages) + 1) // 2)
    repeated = {line for line, count in counts.items() if count >= least}
    return [_stripped(list(page), repeated) for page in pages] if repeated else [list(page) for page in pages]


def _margins(lines: Sequence[str]) -> list[str]:
    return [*lines[:_MARGIN_LINES], *lines[-_MARGIN_LINES:]]


def _stripped(page: list[str], repeated: set[str]) -> list[str]:
    for end in (0, -1):
        for _ in range(_MARGIN_LINES):
            while page and not page[end].strip():
                page.pop(end)
            if page and _pattern(page[end]) in repeated:
                page.pop(end)
    return page


def _pattern(line: str) -> str:
    text = " ".join(line.split())
    pattern = _NUMBER.sub("#", text)
    is_row = pattern.count("#") > 2 or _TWO_NUMBERS.search(pattern)
    return text if is_row and not any(map(str.isalpha, pattern)) else pattern
