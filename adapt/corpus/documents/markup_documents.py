"""Reads Markdown, reStructuredText and LaTeX: the text without markup, with a mark before each heading."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from adapt.corpus.documents.document_kinds import HEADING, NO_TEXT, UnreadableDocumentError, unmarked

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*\n", re.S)
"""The YAML with which many Markdown files begin."""


def markdown_text(source: str) -> str:
    """Returns the text of Markdown (CommonMark with tables), with code and without HTML, images and addresses.

    Raises:
        UnreadableDocumentError: there is no text.
    """
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").enable("table").parse(_FRONT_MATTER.sub("", unmarked(source)))
    blocks, heading = [], ""
    for token in tokens:
        if token.type == "heading_open":
            heading = HEADING
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
"""A role, such as :class:`Name` or :ref:`title <label>`. Sphinx has roles that docutils does not know."""
_RST = {
    "file_insertion_enabled": False,  # a document must not read files
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
    """Returns the text of reStructuredText, with code and without comments and unknown directives.

    Raises:
        UnreadableDocumentError: there is no text.
    """
    from docutils import core, nodes

    tree = core.publish_doctree(_ROLE.sub(r"\1", unmarked(source)), settings_overrides=_RST)
    left_out = (nodes.comment, nodes.system_message, nodes.raw, nodes.substitution_definition)
    for node in list(tree.findall(lambda node: isinstance(node, left_out))):
        if node.parent is not None:
            node.parent.remove(node)
    return _joined(
        (HEADING if isinstance(node, nodes.title) else "") + node.astext()
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

    Formulas stay as they are written. Files that the document includes are not read.

    Raises:
        UnreadableDocumentError: there is no text.
    """
    from pylatexenc.latex2text import (
        EnvironmentTextSpec,
        LatexNodes2Text,
        MacroTextSpec,
        get_default_latex_context_db,
    )

    body = _BODY.search(unmarked(source))
    context = get_default_latex_context_db()
    context.add_context_category(
        "dontstop",
        prepend=True,
        macros=[
            *(MacroTextSpec(name, simplify_repl=f"\n\n{HEADING}%(3)s\n\n") for name in _HEADINGS),
            *(MacroTextSpec(name, discard=True) for name in _DROPPED_MACROS),
        ],
        environments=[EnvironmentTextSpec(name, discard=True) for name in _DROPPED_ENVIRONMENTS],
    )
    converter = LatexNodes2Text(latex_context=context, math_mode="verbatim", keep_comments=False)
    return _joined([converter.latex_to_text(body[1] if body else source, tolerant_parsing=True)])


def _joined(blocks: Any) -> str:
    text = "\n\n".join(block for block in blocks if block.strip(HEADING + " \n"))
    if not any(map(str.isalnum, text)):
        raise UnreadableDocumentError(NO_TEXT)
    return text


READERS = {"markdown": markdown_text, "rst": rst_text, "tex": tex_text}
"""Functions that return the marked text of a source, keyed by kind of document."""
