"""Reads DOCX and EPUB files: zip archives of XML, unpacked part by part and within limits.

The XML of Word files is parsed directly, because the text of tracked insertions, text boxes and content controls is
also needed. Headers, footers, comments, footnotes and deleted text are in other parts or elements, and are left out.
"""

import posixpath
import zipfile
import zlib
from collections.abc import Iterator
from io import BytesIO
from urllib.parse import unquote
from xml.etree.ElementTree import Element, ParseError, fromstring

from adapt.corpus.documents import document_kinds

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
_FONT_OBFUSCATION = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")


class _Archive:
    """A zip archive whose parts are unpacked within a limit on their total size."""

    def __init__(self, data: bytes, limits: document_kinds.DocumentLimits) -> None:
        self._left = limits.max_bytes
        if data.startswith(_OLE):  # Office wraps encrypted documents in this format
            raise document_kinds.UnreadableDocumentError(
                document_kinds.ENCRYPTED if _ENCRYPTED_PACKAGE in data else document_kinds.BROKEN
            )
        try:
            self._zip = zipfile.ZipFile(BytesIO(data))
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise document_kinds.UnreadableDocumentError(document_kinds.BROKEN) from error
        self._names = {info.filename for info in self._zip.infolist()}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def read(self, name: str) -> bytes:
        """Unpacks the part (file) of the archive with the given name.

        Raises:
            UnreadableDocumentError: there is no such part, or it is encrypted, damaged or too large.
        """
        if name not in self._names:
            raise document_kinds.UnreadableDocumentError(document_kinds.BROKEN)
        info = self._zip.getinfo(name)
        if info.flag_bits & 1:
            raise document_kinds.UnreadableDocumentError(document_kinds.ENCRYPTED)
        try:
            with self._zip.open(info) as part:
                content = part.read(self._left + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
            raise document_kinds.UnreadableDocumentError(document_kinds.BROKEN) from error
        self._left -= len(content)
        if self._left < 0:
            raise document_kinds.UnreadableDocumentError(document_kinds.TOO_LARGE)
        return content


_ENTITY = tuple("<!ENTITY".encode(name) for name in ("utf-8", "utf-16-le", "utf-16-be"))
"""Beginning of an entity declaration, in each encoding that XML allows."""


def _parsed(content: bytes) -> Element:
    """Parses XML.

    Raises:
        UnreadableDocumentError: the XML is malformed, too deeply nested, or declares entities. With entities, a few
            bytes can expand to gigabytes, and Office and EPUB programs declare none.
    """
    if any(entity in content for entity in _ENTITY):
        raise document_kinds.UnreadableDocumentError(document_kinds.BROKEN)
    try:
        root = fromstring(content)
    except (ParseError, ValueError, LookupError) as error:
        raise document_kinds.UnreadableDocumentError(document_kinds.BROKEN) from error
    level = [root]
    for _ in range(document_kinds.MAX_DEPTH):
        level = [child for element in level for child in element]
    if level:
        raise document_kinds.UnreadableDocumentError(document_kinds.TOO_DEEP)
    return root


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _attributes(element: Element) -> dict[str, str]:
    """Returns the attributes of an element, keyed by name without namespace."""
    return {_local(name): value for name, value in element.attrib.items()}


def _named(root: Element, name: str) -> list[dict[str, str]]:
    """Returns the attributes of the elements with a name, in any namespace, in the order of the document."""
    return [_attributes(element) for element in root.iter() if _local(element.tag) == name]


def _heading_styles(root: Element) -> set[str]:
    """Returns the ids of the paragraph styles that mark headings.

    Files contain the English names of styles, whatever the language of Word.
    """
    headings = set()
    for style in (element for element in root.iter() if _local(element.tag) == "style"):
        names = [name.get("val", "").lower() for name in _named(style, "name")]
        if _named(style, "outlineLvl") or any(name.startswith("heading ") or name == "title" for name in names):
            headings.add(_attributes(style).get("styleId", ""))
    return headings


_LEFT_OUT = ("Fallback", "moveFrom", "tabs")
"""XML elements whose text is not extracted. `Fallback` and `moveFrom` repeat other text. `tabs` lists tab stops, which
would be read as tab characters."""
_CHARACTERS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
"""Characters that Word stores as elements, keyed by the element's name."""


def _paragraphs(element: Element, headings: set[str], pieces: list[str]) -> Iterator[str]:
    """Yields the paragraphs inside an element, with a mark before each heading.

    A paragraph is yielded where it ends, because a text box has paragraphs inside a paragraph.

    Args:
        element: an element of the body of a Word document.
        headings: ids of the styles that mark headings.
        pieces: pieces of text of the paragraph that contains the element, to which the element's text is added.
    """
    for child in element:
        name = _local(child.tag)
        if name in _LEFT_OUT:
            continue
        if name == "t":
            pieces.append(document_kinds.unmarked("".join(child.itertext())))
            continue
        inner = list[str]() if name == "p" else pieces
        if name == "pStyle" and _attributes(child).get("val") in headings:
            pieces.insert(0, document_kinds.HEADING)
        elif name in _CHARACTERS:
            pieces.append(_CHARACTERS[name])
        yield from _paragraphs(child, headings, inner)
        if name == "p" and (text := "".join(inner)).strip(document_kinds.HEADING + " \t\n"):
            yield text


def docx_text(data: bytes, limits: document_kinds.DocumentLimits) -> str:
    """Returns the text of a Word document, with a mark before each heading.

    Raises:
        UnreadableDocumentError: the document is encrypted, broken, too large or too deep, or has no text.
    """
    archive = _Archive(data, limits)
    styles = "word/styles.xml"
    headings = _heading_styles(_parsed(archive.read(styles))) if styles in archive else set[str]()
    paragraphs = list(_paragraphs(_parsed(archive.read("word/document.xml")), headings, []))
    if not paragraphs:
        raise document_kinds.UnreadableDocumentError(document_kinds.NO_TEXT)
    return "\n\n".join(paragraphs)


def epub_chapters(data: bytes, limits: document_kinds.DocumentLimits) -> list[bytes]:
    """Returns the XHTML of the chapters of a book, in reading order.

    Raises:
        UnreadableDocumentError: the book is encrypted, broken, too large or too deep.
    """
    archive = _Archive(data, limits)
    if "META-INF/encryption.xml" in archive:
        methods = _named(_parsed(archive.read("META-INF/encryption.xml")), "EncryptionMethod")
        if any(method.get("Algorithm", "") not in _FONT_OBFUSCATION for method in methods):
            raise document_kinds.UnreadableDocumentError(document_kinds.ENCRYPTED)
    roots = _named(_parsed(archive.read("META-INF/container.xml")), "rootfile")
    if not roots:
        raise document_kinds.UnreadableDocumentError(document_kinds.BROKEN)
    path = roots[0].get("full-path", "")
    package = _parsed(archive.read(path))
    files = {
        item.get("id", ""): unquote(item.get("href", ""))
        for item in _named(package, "item")
        if "html" in item.get("media-type", "") and "nav" not in item.get("properties", "").split()
    }
    spine = [item for item in _named(package, "itemref") if item.get("linear") != "no"]
    chapters = [files[item["idref"]] for item in spine if item.get("idref") in files]
    if len(chapters) > limits.max_pages:
        raise document_kinds.UnreadableDocumentError(document_kinds.TOO_LONG)
    folder = posixpath.dirname(path)
    return [archive.read(posixpath.normpath(posixpath.join(folder, chapter))) for chapter in chapters]


def joined_chapters(texts: list[str]) -> str:
    """Joins the texts of chapters, with a mark before each. Chapters without letters or digits are left out.

    Raises:
        UnreadableDocumentError: no chapter has text.
    """
    filled = [text for text in texts if any(map(str.isalnum, text))]
    if not filled:
        raise document_kinds.UnreadableDocumentError(document_kinds.NO_TEXT)
    return "\n\n".join(document_kinds.PAGE + text for text in filled)
