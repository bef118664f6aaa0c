"""Reads HTML, Markdown, reStructuredText and LaTeX: the text without markup, with a mark before each heading.

HTML pages are decoded, and only their main text is read, without navigation, comments and footers.
"""

import codecs
import re
from collections.abc import Iterator, Sequence
from typing import Any

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_encoding

from adapt.corpus.documents import document_kinds

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*\n", re.S)
"""The block of YAML metadata at the beginning of many Markdown files."""


def markdown_text(source: str) -> str:
    """Returns the text of a Markdown document (CommonMark with tables): with code, without HTML, images and URLs.

    Raises:
        UnreadableDocumentError: there is no text.
    """
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").enable("table").parse(_FRONT_MATTER.sub("", document_kinds.unmarked(source)))
    blocks, heading = [], ""
    for token in tokens:
        if token.type == "heading_open":
            heading = document_kinds.HEADING
        elif token.type == "inline":
            blocks.append(heading + "".join(_spans(token.children or [])))
            heading = ""
        elif token.type in ("fence", "code_block"):
            blocks.append(token.content)
    return _joined(blocks)


def _spans(tokens: Sequence[Any]) -> Iterator[str]:
    for token in tokens:
        if token.type in ("text", "code_inline"):
            yield token.content
        elif token.type == "softbreak":
            yield " "
        elif token.type == "hardbreak":
            yield "\n"


_ROLE = re.compile(r":[\w:.+-]+:`~?!?([^`<]*?)\s*(?:<[^`>]*>)?`")
"""A role of reStructuredText, such as :class:`Name` or :ref:`title <label>`. Sphinx has roles that docutils does not
know."""
_RST = {
    "file_insertion_enabled": False,  # prevents docutils from reading other files that a document names
    "raw_enabled": False,
    "_disable_config": True,
    "report_level": 5,
    "halt_level": 5,
    "warning_stream": False,
    "doctitle_xform": False,
    "docinfo_xform": False,
    "line_length_limit": 1_000_000,
}


def rst_text(source: str) -> str:
    """Returns the text of a reStructuredText document, with code and without comments and unknown directives.

    Raises:
        UnreadableDocumentError: there is no text.
    """
    from docutils import core, nodes

    tree = core.publish_doctree(_ROLE.sub(r"\1", document_kinds.unmarked(source)), settings_overrides=_RST)
    left_out = (nodes.comment, nodes.system_message, nodes.raw, nodes.substitution_definition)
    for node in list(tree.findall(lambda node: isinstance(node, left_out))):
        if node.parent is not None:
            node.parent.remove(node)
    return _joined(
        (document_kinds.HEADING if isinstance(node, nodes.title) else "") + node.astext()
        for node in tree.findall(nodes.TextElement)
        if not isinstance(node.parent, nodes.TextElement)
    )


_BODY = re.compile(r"\\begin\{document\}(.*?)(?:\\end\{document\}|\Z)", re.S)
_HEADINGS = ("part", "chapter", "section", "subsection", "subsubsection")
_DROPPED_MACROS = (
    *("cite", "citep", "citet", "citealp", "label", "ref", "eqref", "pageref", "autoref", "cref"),
    *("maketitle", "includegraphics", "bibliography", "bibliographystyle", "input", "include", "tableofcontents"),
)
_DROPPED_ENVIRONMENTS = ("thebibliography", "tikzpicture", "comment", "filecontents")


def tex_text(source: str) -> str:
    """Returns the text of the body of a LaTeX document, without comments, citations and bibliography.

    Formulas are left as LaTeX source. Files that the document includes are not read.

    Raises:
        UnreadableDocumentError: there is no text.
    """
    from pylatexenc.latex2text import EnvironmentTextSpec, LatexNodes2Text, MacroTextSpec, get_default_latex_context_db

    body = _BODY.search(document_kinds.unmarked(source))
    context = get_default_latex_context_db()
    context.add_context_category(
        "dontstop",
        prepend=True,
        macros=[
            *(MacroTextSpec(name, simplify_repl=f"\n\n{document_kinds.HEADING}%(3)s\n\n") for name in _HEADINGS),
            *(MacroTextSpec(name, discard=True) for name in _DROPPED_MACROS),
        ],
        environments=[EnvironmentTextSpec(name, discard=True) for name in _DROPPED_ENVIRONMENTS],
    )
    converter = LatexNodes2Text(latex_context=context, math_mode="verbatim", keep_comments=False)
    return _joined([converter.latex_to_text(body[1] if body else source, tolerant_parsing=True)])


def _joined(blocks: Any) -> str:
    text = "\n\n".join(block for block in blocks if block.strip(document_kinds.HEADING + " \n"))
    if not any(map(str.isalnum, text)):
        raise document_kinds.UnreadableDocumentError(document_kinds.NO_TEXT)
    return text


READERS = {"markdown": markdown_text, "rst": rst_text, "tex": tex_text}
"""Functions that return the marked text of a source, keyed by kind of document."""


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
"""Number of bytes at the beginning of a page that are searched for a declaration of the encoding. The HTML standard
requires the declaration to be in the first 1,024 bytes."""
_HEADING_TAG = re.compile(r"<h[1-6](?:\s[^<>]*)?>", re.I)
_DAMAGE = 1000
"""A page counts as UTF-8 with errors if it has at most one invalid byte per `_DAMAGE` bytes."""
_REPLACEMENT = "\ufffd"
_HEADING = "qzheadingqz"
"""Word that marks headings while a library extracts the text. The library would remove the usual marks, which are
private-use characters."""


def decoded(data: bytes, declared: str | None = None) -> str:
    """Decodes a page or another text of unknown encoding.

    Encodings are tried in this order: the byte order mark, UTF-16 if every other byte is mostly zero, UTF-8, the
    declared encoding, UTF-8 with a few invalid bytes, UTF-16 if the bytes contain a zero byte, and the encoding that a
    detector guesses from the bytes. UTF-8 is tried before the declared encoding, because text of another encoding is
    almost never valid UTF-8 and declared encodings are often wrong.

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
    raise document_kinds.UnreadableDocumentError(document_kinds.NO_ENCODING)


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
        raise document_kinds.UnreadableDocumentError(document_kinds.BROKEN)
    # headings are marked in the source of the page, because finding the headings in the tree takes 20 times as long as
    # extracting the text
    marked = _HEADING_TAG.sub(lambda tag: tag[0] + _HEADING, document_kinds.unmarked(html))
    text: str = extract_plain_text(
        marked, main_content=not whole, alt_texts=False, comments=False, post_meta=False, list_bullets=False
    )
    if not whole and not any(map(str.isalnum, text)):
        raise document_kinds.UnreadableDocumentError(document_kinds.NO_TEXT)
    return text.replace(_HEADING, document_kinds.HEADING)


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
        raise document_kinds.UnreadableDocumentError(document_kinds.NO_ENCODING)
    return text
