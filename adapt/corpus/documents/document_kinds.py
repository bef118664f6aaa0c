"""Defines packages, limits, reasons for unreadable documents, and marks of pages and headings.

Readers put a mark before each page and before each heading. `divided_text` divides the text at these marks. The marks
are private-use characters of Unicode. Readers first remove such characters from the document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adapt.config import CorpusConfig


PACKAGES: dict[str, tuple[str, ...]] = {
    "html": ("resiliparse",),
    "pdf": ("pypdfium2",),
    "docx": (),
    "epub": ("resiliparse",),
    "markdown": ("markdown-it-py",),
    "rst": ("docutils",),
    "tex": ("pylatexenc",),
    "warc": ("fastwarc", "resiliparse", "pypdfium2"),
}
"""Packages that are needed to read a document, keyed by kind of document."""
MIB = 1 << 20
MAX_DEPTH = 200
"""Maximum nesting depth of elements in the XML of DOCX and EPUB files."""

ENCRYPTED = "document is encrypted"
SCANNED = "document is a scan without text"
NO_TEXT = "document without text"
BROKEN = "document is broken, or its format differs from its file name"
BROKEN_PAGES = "document has broken pages, which are left out"
TOO_LARGE = "document is larger than corpus.max_document_mib, before or after decompression"
TOO_DEEP = "document is nested too deeply"
TOO_LONG = "document has more pages than corpus.max_document_pages"
TOO_SLOW = "document takes longer than corpus.max_document_seconds"
CRASHED = "document crashes the library that reads it"
NO_ENCODING = "document in an unknown encoding"


class UnreadableDocumentError(Exception):
    """Raised if a document, or a part of it, has no text that can be read.

    The first argument is the reason, such as ENCRYPTED. The second is the list of texts of the other parts, if any.
    """

    @property
    def reason(self) -> str:
        """The reason why the document cannot be read. Unreadable documents are counted by reason."""
        return str(self.args[0])

    @property
    def texts(self) -> list[str]:
        """The texts of the parts that can be read."""
        return list(self.args[1]) if len(self.args) > 1 else []


@dataclass(frozen=True)
class DocumentLimits:
    """How a document is divided, and the limits on its size and parsing time. Section `corpus` sets the values."""

    split: str = "file"
    """Unit that becomes a document of the corpus: `file`, `page` or `heading`."""
    max_mib: int = 128
    """Maximum size of a document, of its unpacked content, and of its text [MiB]."""
    max_pages: int = 5000
    """Maximum number of pages in a PDF file, or of chapters in an EPUB file."""
    max_seconds: int = 60
    """Maximum CPU time for one document [s]."""

    @property
    def max_bytes(self) -> int:
        """The limit `max_mib` in bytes."""
        return self.max_mib * MIB

    @classmethod
    def of(cls, corpus: CorpusConfig) -> DocumentLimits:
        """Returns the limits that a corpus sets."""
        return cls(corpus.documents, corpus.max_document_mib, corpus.max_document_pages, corpus.max_document_seconds)


PAGE, HEADING = "\ue000", "\ue001"
"""Marks that readers put before a page and before a heading."""
LACKS_PAGES = "\ue002"
"""Mark that readers insert into the text of a document if some of its pages cannot be read."""
_LINE_ENDS = ("\r\n", "\r", "\u2028", "\u2029")


def unmarked(text: str) -> str:
    """Removes the characters that serve as marks from the text of a document."""
    return text.replace(PAGE, "").replace(HEADING, "").replace(LACKS_PAGES, "")


def tidy(text: str) -> str:
    """Removes marks, trailing white space, and repeated blank lines. All line breaks become newlines."""
    text = unmarked(text)
    for end in _LINE_ENDS:
        text = text.replace(end, "\n")  # `str.replace` is many times as fast as a regular expression
    text = "\n".join(map(str.rstrip, text.split("\n")))
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.strip()


def divided_text(text: str, split: str) -> list[str]:
    """Divides the marked text of a document.

    Args:
        text: text of the document, with marks before pages and headings.
        split: `file` keeps the whole text; `page` and `heading` divide it at the marks of pages or headings. A document
            without such marks is not divided. A heading that is directly followed by another heading goes into the part
            of the latter.

    Returns:
        The parts that have text, without marks.
    """
    if split == "page":
        parts = text.split(PAGE)
    elif split == "heading":
        parts = text.split(HEADING)
    else:
        parts = [text]
    found: list[str] = []
    waiting: list[str] = []
    for number, part in enumerate(parts):
        if not (clean := tidy(part)):
            continue
        is_bare = split == "heading" and number > 0 and "\n" not in clean
        if is_bare and number < len(parts) - 1:
            waiting.append(clean)
        else:
            found.append("\n\n".join([*waiting, clean]))
            waiting = []
    return [*found, *(["\n\n".join(waiting)] if waiting else [])]
