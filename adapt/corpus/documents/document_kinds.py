"""Describes the kinds of documents: their packages, the limits for reading one, and the reasons for unreadable ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the process that parses documents does not need the configuration
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
"""Packages that read a document, keyed by kind of document."""
MIB = 1 << 20
MAX_DEPTH = 200
"""Largest depth of nested elements in the XML of DOCX and EPUB files."""

ENCRYPTED = "document is encrypted"
SCANNED = "document is a scan without text"
NO_TEXT = "document without text"
BROKEN = "document is broken or not of the format that its name says"
BROKEN_PAGES = "document with broken pages, which are left out"
TOO_LARGE = "document is larger than corpus.max_document_mib, as stored or unpacked"
TOO_DEEP = "document is nested too deeply"
TOO_LONG = "document has more pages than corpus.max_document_pages"
TOO_SLOW = "document takes longer than corpus.max_document_seconds"
CRASHED = "document crashes the library that reads it"
NO_ENCODING = "document in an unknown encoding"


class UnreadableDocumentError(Exception):
    """A document, or a part of it, has no text that can be read.

    The first argument is the reason, such as ENCRYPTED. The second is the list of texts of the other parts, if any.
    """

    @property
    def reason(self) -> str:
        """The reason, under which the document is counted."""
        return str(self.args[0])

    @property
    def texts(self) -> list[str]:
        """The texts of the parts that can be read."""
        return list(self.args[1]) if len(self.args) > 1 else []


@dataclass(frozen=True)
class DocumentLimits:
    """How a document is divided, and how much work it may cause. The fields are those of section `corpus`."""

    split: str = "file"
    """Unit that becomes a document of the corpus: `file`, `page` or `heading`."""
    max_mib: int = 128
    """Largest size of a document, of its unpacked content, and of its text [MiB]."""
    max_pages: int = 5000
    """Largest number of pages of a PDF file, or of chapters of an EPUB file."""
    max_seconds: int = 60
    """Largest CPU time for one document [s]."""

    @property
    def max_bytes(self) -> int:
        """The limit `max_mib` in bytes."""
        return self.max_mib * MIB

    @classmethod
    def of(cls, corpus: CorpusConfig) -> DocumentLimits:
        """Returns the limits that a corpus sets."""
        return cls(corpus.documents, corpus.max_document_mib, corpus.max_document_pages, corpus.max_document_seconds)
