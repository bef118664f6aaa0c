"""Tests the text read from each document format, its division into parts, and the errors of unreadable documents."""

import codecs
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from adapt.corpus.documents.document_kinds import (
    BROKEN,
    BROKEN_PAGES,
    ENCRYPTED,
    NO_TEXT,
    SCANNED,
    TOO_DEEP,
    TOO_LARGE,
    TOO_LONG,
    DocumentLimits,
    UnreadableDocumentError,
    divided_text,
)
from adapt.corpus.documents.document_reader import read_document
from adapt.corpus.documents.markup_documents import decoded
from adapt.corpus.documents.pdf_pages import without_margins
from tests.corpus.documents.made_documents import (
    AUSTEN,
    DARWIN,
    PARAGRAPHS,
    SELECTION,
    STYLES,
    WORD,
    docx,
    epub,
    page,
    pdf,
    pdf_with_broken_page,
    scanned_pdf,
    zipped,
)

LIMITS = DocumentLimits()
MARKDOWN = f"""---
title: left out
---
# One

{DARWIN} See [the *book*](http://host/book) and `code`.
<b>no tag</b> ![no image](a.png)

Two
===

- {SELECTION}

| a cell | another |
|---|---|
| third | fourth |
"""
RST = f"""
One
===

{DARWIN} See :class:`~the.Book` and :ref:`the page <label>`.

.. include:: /etc/passwd

.. a comment

.. unknown:: directive

Two
---

.. note:: {SELECTION}
"""
TEX = rf"""
\documentclass{{article}} \title{{Left out}}
\begin{{document}}
\maketitle
\section{{One}}
{DARWIN} % a comment
Energy is $E = mc^2$ \cite{{someone}}, \emph{{stressed}}.
\input{{/etc/passwd}}
\subsection*{{Two}}
{SELECTION}
\begin{{thebibliography}}{{9}}\bibitem{{someone}} Someone.\end{{thebibliography}}
\end{{document}}
"""
SOURCES = {"markdown": MARKDOWN, "rst": RST, "tex": TEX}


def plain(text: str) -> str:
    """Replaces white space and line breaks in a text with single spaces."""
    return " ".join(text.split())


def read(kind: str, data: bytes | str, **limits: int | str) -> list[str]:
    content = data.encode() if isinstance(data, str) else data
    return read_document(kind, content, DocumentLimits(**limits))  # type: ignore[arg-type]


def reason(kind: str, data: bytes | str, **limits: int | str) -> str:
    with pytest.raises(UnreadableDocumentError) as caught:
        read(kind, data, **limits)
    return caught.value.reason


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("html", page(PARAGRAPHS).encode()),
        ("pdf", pdf(PARAGRAPHS)),
        ("docx", docx(PARAGRAPHS)),
        ("epub", epub(PARAGRAPHS)),
    ],
)
def test_a_document_is_one_text_with_all_paragraphs(kind: str, data: bytes) -> None:
    (text,) = read(kind, data)
    places = [plain(text).find(paragraph) for paragraph in PARAGRAPHS]
    assert places == sorted(places)
    assert places[0] >= 0
    assert not {"\r", "\0", "\ue000", "\ue001"} & {*text}


def test_navigation_scripts_and_footers_of_a_web_page_are_left_out() -> None:
    (text,) = read("html", page(PARAGRAPHS))
    assert not [part for part in ("Login", "Imprint", "tracking", "Copyright") if part in text]


@pytest.mark.parametrize("kind", SOURCES)
def test_markup_is_left_out(kind: str) -> None:
    (text,) = read(kind, SOURCES[kind])
    assert DARWIN in plain(text)
    assert SELECTION in plain(text)
    assert not [
        part for part in ("Left out", "title:", "comment", "root:", "someone", "http", "::", "<b>") if part in text
    ]
    kept = {"markdown": ("the book and code", "fourth"), "rst": ("See", "Book"), "tex": ("$E = mc^2$", "stressed")}[
        kind
    ]
    assert all(part in plain(text) for part in kept)


@pytest.mark.parametrize(
    ("kind", "data", "split", "starts"),
    [
        ("pdf", pdf(PARAGRAPHS), "page", [text[:30] for text in PARAGRAPHS]),
        ("pdf", pdf(PARAGRAPHS), "heading", [DARWIN[:30]]),
        ("epub", epub(PARAGRAPHS), "page", ["Part 1", "Part 2", "Part 3"]),
        ("html", page(PARAGRAPHS).encode(), "heading", ["A book\n\nChapter 1", "Chapter 2", "Chapter 3"]),
        ("html", page(PARAGRAPHS).encode(), "page", ["A book"]),
        ("docx", docx(PARAGRAPHS, headings=True), "heading", ["Chapter 1", "Chapter 2", "Chapter 3"]),
        *((kind, source.encode(), "heading", ["One", "Two"]) for kind, source in SOURCES.items()),
    ],
)
def test_pages_and_headings_divide_documents(kind: str, data: bytes, split: str, starts: list[str]) -> None:
    texts = read(kind, data, split=split)
    assert [text[: len(start)] for text, start in zip(texts, starts, strict=True)] == starts


def test_headings_without_text_are_put_before_the_next_heading() -> None:
    assert divided_text("before\ue001A\n\n\ue001B\ntext\ue001C", "heading") == ["before", "A\n\nB\ntext", "C"]
    assert divided_text("a\ue000\n \ue000b \r\n\r\n\r\nc", "page") == ["a", "b\n\nc"]
    assert divided_text("a\ue000b", "file") == ["ab"]


@pytest.mark.parametrize("row", ["{0} {0}5", "{0}.5 -{0}.25", "{0} 17 {0}"])
def test_rows_of_numbers_at_the_ends_of_pages_are_kept(row: str) -> None:
    pages = [["a table", row.format(number), f"{number} / 4"] for number in range(1, 5)]
    assert without_margins(pages) == [[row.format(number)] for number in range(1, 5)]


def test_targets_inside_of_text_keep_their_text() -> None:
    source = (
        ".. _label:\n\nThe _`natural selection` of `species <http://host/>`_ is a target.\n\n.. _host: http://host/\n"
    )
    assert read("rst", source) == ["The natural selection of species is a target."]


def test_repeated_headers_and_page_numbers_are_removed() -> None:
    (text,) = read("pdf", pdf(PARAGRAPHS, header="The Origin of Species, page"))
    assert "The Origin" not in text
    assert all(paragraph in plain(text) for paragraph in PARAGRAPHS)
    two = [["Title", "a"], ["Title", "b"]]
    assert without_margins(two) == two  # with so few pages, a header cannot be distinguished from text
    assert without_margins([["p. 1", "a b", "c d"], ["p. 2", "e f", "g h"], ["p. 3", "k m", "n o"]]) == [
        ["a b", "c d"],
        ["e f", "g h"],
        ["k m", "n o"],
    ]


def test_broken_pages_of_pdf_files_are_left_out_and_named() -> None:
    with pytest.raises(UnreadableDocumentError) as caught:
        read("pdf", pdf_with_broken_page(), split="page")
    assert caught.value.reason == BROKEN_PAGES
    assert [plain(text) for text in caught.value.texts] == [DARWIN, AUSTEN]


def test_lines_of_a_sentence_are_joined_in_pdf_files() -> None:
    (text,) = read("pdf", pdf([DARWIN]))
    assert DARWIN in text


@pytest.mark.parametrize(
    ("content", "encoding", "declared"),
    [
        # the page declares a wrong encoding
        (page([AUSTEN + " déjà vu, größer"], charset="iso-8859-1"), "utf-8", None),
        (page([AUSTEN + " déjà vu, größer"], charset="utf-8"), "cp1252", None),
        (page([AUSTEN + " déjà vu, größer"], charset="windows-1252"), "cp1252", None),
        (page([AUSTEN + " déjà vu, größer"], charset="none-such"), "cp1252", None),
        (page([AUSTEN + " déjà vu, größer"], charset="utf-16"), "utf-16", None),
        (page([AUSTEN + " déjà vu, größer"], charset="utf-8"), "utf-16-le", None),
        (page([AUSTEN], charset="utf-8"), "utf-16-le", None),
        (page([AUSTEN], charset="utf-8"), "utf-16-be", "utf-8"),
        (AUSTEN + "\0\0 a few zeros", "utf-8", None),
        (page(["Всё смешалось в доме Облонских. " * 9], charset="koi8-r"), "koi8-r", None),
        (page(["Всё смешалось в доме Облонских. " * 9], charset="utf-8"), "cp1251", "windows-1251"),
        (page(["春はあけぼの。やうやう白くなりゆく山際、少し明かりて。" * 9], charset="shift_jis"), "shift_jis", None),
    ],
)
def test_pages_in_a_wrong_encoding_are_decoded(content: str, encoding: str, declared: str | None) -> None:
    assert decoded(content.encode(encoding), declared) == content


def test_a_few_invalid_bytes_do_not_change_the_encoding() -> None:
    text = decoded((AUSTEN * 20).encode() + b"\xff caf\xc3\xa9")
    assert text.endswith("\ufffd café")
    assert decoded(codecs.BOM_UTF8 + b"a") == "a"


def test_text_of_insertions_text_boxes_and_fallbacks_is_read_once() -> None:
    body = (
        "<w:p><w:ins><w:r><w:t>inserted</w:t></w:r></w:ins><w:del><w:r><w:delText>deleted</w:delText></w:r></w:del>"
        "<w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom><w:r><w:tab/><w:t>after</w:t></w:r></w:p>"
        '<w:p><x:AlternateContent xmlns:x="x"><x:Choice><w:p><w:r><w:t>box</w:t></w:r></w:p></x:Choice>'
        "<x:Fallback><w:p><w:r><w:t>box</w:t></w:r></w:p></x:Fallback></x:AlternateContent></w:p>"
    )
    (text,) = read("docx", docx([DARWIN], body=body))
    assert text == f"{DARWIN}\n\ninserted\tafter\n\nbox"


def test_tab_stops_are_no_tabs_and_hyphens_are_kept() -> None:
    stops = '<w:pPr><w:tabs><w:tab w:val="left" w:pos="720"/><w:tab w:val="right" w:pos="9000"/></w:tabs></w:pPr>'
    body = f"<w:p>{stops}<w:r><w:t>well</w:t><w:noBreakHyphen/><w:t>known</w:t><w:tab/><w:t>1</w:t></w:r></w:p>"
    assert read("docx", docx([DARWIN], body=body)) == [f"{DARWIN}\n\nwell-known\t1"]


ENTITIES = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
DEEP = f'<w:document xmlns:w="{WORD}">' + "<w:p>" * 1000 + "</w:p>" * 1000 + "</w:document>"


def expanding(encoding: str) -> bytes:
    """Returns the XML of a Word document that contains an XML entity, in the given encoding."""
    text = f'\ufeff{ENTITIES}<w:document xmlns:w="{WORD}"><w:p><w:r><w:t>&b;</w:t></w:r></w:p></w:document>'
    return text.encode(encoding)


def understated_bomb() -> bytes:
    """Returns a DOCX file whose index states a small size for a huge part."""
    data = bytearray(zipped({"word/document.xml": b" " * (3 << 20)}))
    place = data.index(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", 10)
    return bytes(data)


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("pdf", lambda: pdf(PARAGRAPHS, password="secret"), ENCRYPTED),
        ("pdf", scanned_pdf, SCANNED),
        ("pdf", lambda: pdf(PARAGRAPHS)[:400], BROKEN),
        ("pdf", lambda: page(PARAGRAPHS).encode(), BROKEN),
        ("pdf", lambda: b"", BROKEN),
        ("docx", lambda: docx(PARAGRAPHS)[:-300], BROKEN),
        ("docx", lambda: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"), ENCRYPTED),
        ("docx", lambda: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 an old Word file", BROKEN),
        ("docx", lambda: zipped({"xl/workbook.xml": "<x/>"}), BROKEN),
        ("docx", lambda: zipped({"word/document.xml": "<w:document"}), BROKEN),
        ("docx", lambda: zipped({"word/document.xml": ENTITIES + "<x>&b;</x>"}), BROKEN),
        ("docx", lambda: zipped({"word/document.xml": expanding("utf-16-le")}), BROKEN),
        ("docx", lambda: zipped({"word/document.xml": expanding("utf-16-be")}), BROKEN),
        ("docx", lambda: zipped({"word/document.xml": DEEP}), TOO_DEEP),
        ("docx", lambda: zipped({"word/document.xml": b" " * (3 << 20), "word/styles.xml": STYLES}), TOO_LARGE),
        ("docx", understated_bomb, BROKEN),
        ("docx", lambda: docx([]), NO_TEXT),
        ("epub", lambda: epub(PARAGRAPHS, "http://www.w3.org/2001/04/xmlenc#aes128-cbc"), ENCRYPTED),
        ("epub", lambda: zipped({"mimetype": "application/epub+zip"}), BROKEN),
        ("epub", lambda: epub([]), NO_TEXT),
        ("html", lambda: b"<html><body><img src='a.png'></body></html>", NO_TEXT),
        ("html", lambda: b"", NO_TEXT),
        ("html", lambda: bytes(5000), BROKEN),
        ("plain", lambda: b" \n", NO_TEXT),
        ("markdown", lambda: b"![](a.png)", NO_TEXT),
        ("rst", lambda: b".. a comment", NO_TEXT),
        ("tex", lambda: rb"\begin{document}\maketitle\end{document}", NO_TEXT),
    ],
)
def test_unreadable_documents_have_a_reason(kind: str, data: Callable[[], bytes], expected: str) -> None:
    assert reason(kind, data(), max_mib=1) == expected


def test_chapters_of_images_are_left_out_of_a_book() -> None:
    cover = "</p><img src='cover.jpg'/><p>"
    book = epub([cover, DARWIN, cover, SELECTION], headings=False)
    texts = read("epub", book, split="page")
    assert [plain(text) for text in texts] == [DARWIN, SELECTION]
    assert reason("epub", epub([cover, cover], headings=False)) == NO_TEXT


def test_fonts_may_be_obfuscated() -> None:
    assert read("epub", epub(PARAGRAPHS, "http://www.idpf.org/2008/embedding"))


def test_limits() -> None:
    assert reason("pdf", pdf(PARAGRAPHS), max_pages=2) == TOO_LONG
    assert reason("epub", epub(PARAGRAPHS), max_pages=2) == TOO_LONG
    assert len(read("pdf", pdf(PARAGRAPHS), max_pages=3, split="page")) == 3
    assert reason("plain", b"a" * ((1 << 20) + 1), max_mib=1) == TOO_LARGE


def test_the_zip_bomb_is_small_on_disk(tmp_path: Path) -> None:
    file = tmp_path / "bomb.docx"
    file.write_bytes(zipped({"word/document.xml": b" " * (3 << 20)}))
    assert file.stat().st_size < 10_000
    assert zipfile.ZipFile(file).testzip() is None
