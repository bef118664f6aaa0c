"""Reads DOCX and EPUB files: zip archives of XML, unpacked part by part and within limits.

The XML of Word files is parsed directly, because the text of tracked insertions, text boxes and content controls is
also needed. Headers, footers, comments, footnotes and deleted text are in other parts or elements, and are left out.
"""

import posixpath
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from urllib.parse import unquote
from xml.etree.ElementTree import ParseError, XMLParser

from adapt.corpus.documents.document_kinds import (
    BROKEN,
    ENCRYPTED,
    HEADING,
    MAX_DEPTH,
    NO_TEXT,
    PAGE,
    TOO_DEEP,
    TOO_LARGE,
    TOO_LONG,
    DocumentLimits,
    UnreadableDocumentError,
    unmarked,
)

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
_FONT_OBFUSCATION = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
Start = Callable[[str, dict[str, str]], None]


class _Archive:
    """A zip archive whose parts are unpacked within a limit on their total size."""

    def __init__(self, data: bytes, limits: DocumentLimits) -> None:
        self._left = limits.max_bytes
        if data.startswith(_OLE):  # Office wraps encrypted documents in this format
            raise UnreadableDocumentError(ENCRYPTED if _ENCRYPTED_PACKAGE in data else BROKEN)
        try:
            self._zip = zipfile.ZipFile(BytesIO(data))
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise UnreadableDocumentError(BROKEN) from error
        self._names = {info.filename for info in self._zip.infolist()}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def read(self, name: str) -> bytes:
        """Unpacks the part (file) of the archive with the given name.

        Raises:
            UnreadableDocumentError: there is no such part, or it is encrypted, damaged or too large.
        """
        if name not in self._names:
            raise UnreadableDocumentError(BROKEN)
        info = self._zip.getinfo(name)
        if info.flag_bits & 1:
            raise UnreadableDocumentError(ENCRYPTED)
        try:
            with self._zip.open(info) as part:
                content = part.read(self._left + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
            raise UnreadableDocumentError(BROKEN) from error
        self._left -= len(content)
        if self._left < 0:
            raise UnreadableDocumentError(TOO_LARGE)
        return content


class _Handler:
    """Receives XML elements one at a time. A tree of the elements could be many times as large as the XML."""

    def __init__(self) -> None:
        self._depth = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Receives the beginning of an element."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnreadableDocumentError(TOO_DEEP)
        self.begin(_local(tag), {_local(name): value for name, value in attributes.items()})

    def end(self, tag: str) -> None:
        """Receives the end of an element."""
        self._depth -= 1
        self.finish(_local(tag))

    def data(self, text: str) -> None:
        """Receives text. Handlers that need text override this function."""

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        """Receives the name and the attributes of an element that begins, without namespaces."""

    def finish(self, name: str) -> None:
        """Receives the name of an element that ends."""

    def close(self) -> None:
        """Ends the parsing."""


_ENTITY = tuple("<!ENTITY".encode(name) for name in ("utf-8", "utf-16-le", "utf-16-be"))
"""Beginning of an entity declaration, in each encoding that XML allows."""


def _parse(content: bytes, handler: _Handler) -> None:
    """Parses XML.

    Raises:
        UnreadableDocumentError: the XML is malformed, too deeply nested, or declares entities. With entities, a few
            bytes can expand to gigabytes, and Office and EPUB programs declare none.
    """
    if any(entity in content for entity in _ENTITY):
        raise UnreadableDocumentError(BROKEN)
    try:
        parser = XMLParser(target=handler)
        parser.feed(content)
        parser.close()
    except (ParseError, ValueError, LookupError) as error:
        raise UnreadableDocumentError(BROKEN) from error


def _local(name: str) -> str:
    return name.rpartition("}")[2]


class _Styles(_Handler):
    """Collects the ids of the paragraph styles that mark headings.

    Files contain the English names of styles, whatever the language of Word.
    """

    def __init__(self) -> None:
        super().__init__()
        self.headings: set[str] = set()
        self._style = ""

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        value = attributes.get("val", "").lower()
        if name == "style":
            self._style = attributes.get("styleId", "")
        elif (name == "name" and (value.startswith("heading ") or value == "title")) or name == "outlineLvl":
            self.headings.add(self._style)


_LEFT_OUT = ("Fallback", "moveFrom", "tabs")
"""XML elements whose text is not extracted. `Fallback` and `moveFrom` repeat other text. `tabs` lists tab stops, which
would be read as tab characters."""
_CHARACTERS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
"""Characters that Word stores as elements, keyed by the element's name."""


class _Word(_Handler):
    """Collects the paragraphs of the body of a Word document, with a mark before each heading."""

    def __init__(self, headings: set[str]) -> None:
        super().__init__()
        self.paragraphs: list[str] = []
        self._headings = headings
        self._open: list[list[str]] = []
        """Pieces of text of each open paragraph (begun but not ended). Several paragraphs can be open, because a text
        box has paragraphs inside a paragraph."""
        self._in_text = False
        self._skipped = 0
        """Number of open XML elements (begun but not ended) whose text is left out."""

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        if self._skipped or name in _LEFT_OUT:
            self._skipped += 1
        elif name == "p":
            self._open.append([])
        elif name == "t":
            self._in_text = True
        elif not self._open:
            return
        elif name == "pStyle" and attributes.get("val") in self._headings:
            self._open[-1].insert(0, HEADING)
        elif name in _CHARACTERS:
            self._open[-1].append(_CHARACTERS[name])

    def data(self, text: str) -> None:
        if self._in_text and self._open and not self._skipped:
            self._open[-1].append(unmarked(text))

    def finish(self, name: str) -> None:
        if self._skipped:
            self._skipped -= 1
        elif name == "t":
            self._in_text = False
        elif name == "p" and self._open and (text := "".join(self._open.pop())).strip(HEADING + " \t\n"):
            self.paragraphs.append(text)


def docx_text(data: bytes, limits: DocumentLimits) -> str:
    """Returns the text of a Word document, with a mark before each heading.

    Raises:
        UnreadableDocumentError: the document is encrypted, broken, too large or too deep, or has no text.
    """
    archive = _Archive(data, limits)
    styles = _Styles()
    if "word/styles.xml" in archive:
        _parse(archive.read("word/styles.xml"), styles)
    word = _Word(styles.headings)
    _parse(archive.read("word/document.xml"), word)
    if not word.paragraphs:
        raise UnreadableDocumentError(NO_TEXT)
    return "\n\n".join(word.paragraphs)


class _Package(_Handler):
    """Collects the reading order of the chapters of a book."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, str] = {}
        """Paths of the book's text files, keyed by id."""
        self.spine: list[str] = []
        """Ids of the book's text files in reading order."""
        self.roots: list[str] = []
        """Paths of the book's package files, as listed in `container.xml`."""
        self.algorithms: list[str] = []
        """Algorithms with which files of the book are encrypted, as listed in `encryption.xml`."""

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        if name == "rootfile":
            self.roots.append(attributes.get("full-path", ""))
        elif (
            name == "item"
            and "html" in attributes.get("media-type", "")
            and "nav" not in attributes.get("properties", "").split()
        ):
            self.files[attributes.get("id", "")] = unquote(attributes.get("href", ""))
        elif name == "itemref" and attributes.get("linear") != "no":
            self.spine.append(attributes.get("idref", ""))
        elif name == "EncryptionMethod":
            self.algorithms.append(attributes.get("Algorithm", ""))


def epub_chapters(data: bytes, limits: DocumentLimits) -> list[bytes]:
    """Returns the XHTML of the chapters of a book, in reading order.

    Raises:
        UnreadableDocumentError: the book is encrypted, broken, too large or too deep.
    """
    archive, package = _Archive(data, limits), _Package()
    if "META-INF/encryption.xml" in archive:
        _parse(archive.read("META-INF/encryption.xml"), package)
        if any(name not in _FONT_OBFUSCATION for name in package.algorithms):
            raise UnreadableDocumentError(ENCRYPTED)
    _parse(archive.read("META-INF/container.xml"), package)
    if not package.roots:
        raise UnreadableDocumentError(BROKEN)
    _parse(archive.read(package.roots[0]), package)
    folder = posixpath.dirname(package.roots[0])
    chapters = [package.files[name] for name in package.spine if name in package.files]
    if len(chapters) > limits.max_pages:
        raise UnreadableDocumentError(TOO_LONG)
    return [archive.read(posixpath.normpath(posixpath.join(folder, chapter))) for chapter in chapters]


def joined_chapters(texts: list[str]) -> str:
    """Joins the texts of chapters, with a mark before each. Chapters without letters or digits are left out.

    Raises:
        UnreadableDocumentError: no chapter has text.
    """
    filled = [text for text in texts if any(map(str.isalnum, text))]
    if not filled:
        raise UnreadableDocumentError(NO_TEXT)
    return "\n\n".join(PAGE + text for text in filled)
