"""Tests how documents enter a corpus: items, counts of unreadable documents, limits, crashes and missing packages."""

import gzip
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from adapt.config import CorpusConfig
from adapt.corpus.corpora import check_readable, reading_identity
from adapt.corpus.documents import document_files, document_reader
from adapt.corpus.documents.document_files import DocumentProcess, check_packages, document_process, read_documents
from adapt.corpus.documents.document_kinds import (
    BROKEN,
    BROKEN_PAGES,
    CRASHED,
    ENCRYPTED,
    SCANNED,
    TOO_LARGE,
    TOO_SLOW,
    DocumentLimits,
)
from adapt.corpus.files.formats import Bad
from adapt.corpus.files.manifest import DOCUMENTS_PER_ITEM, build_manifest, expand_paths, items_of, places_of, slices_of
from adapt.corpus.files.records import check_field, read_objects
from adapt.corpus.screening import Tally, check_few_bad, item_texts
from adapt.runner.digest import Digests
from adapt.support.errors import ConfigError, DataError
from tests.corpus.documents.made_documents import (
    AUSTEN,
    DARWIN,
    PARAGRAPHS,
    docx,
    epub,
    page,
    pdf,
    pdf_with_broken_page,
    scanned_pdf,
    warc,
    write,
    zipped,
)

LIMITS = DocumentLimits()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a folder with documents of all formats, unreadable documents, and files that are not read."""
    return write(
        tmp_path_factory.mktemp("mixed"),
        {
            "a.html": page(PARAGRAPHS),
            "b.htm.gz": gzip.compress(page([AUSTEN]).encode()),
            "c.pdf": pdf(PARAGRAPHS),
            "d.docx": docx(PARAGRAPHS),
            "e.epub": epub(PARAGRAPHS),
            "f.md": f"# Title\n\n{DARWIN}",
            "g.rst": f"Title\n=====\n\n{DARWIN}",
            "h.tex": rf"\begin{{document}}{DARWIN}\end{{document}}",
            "i.warc.gz": warc([("200 OK", "text/html", page([AUSTEN]).encode())]),
            "k.pdf": pdf(PARAGRAPHS, password="secret"),
            "l.pdf": scanned_pdf(),
            "m.docx": docx(PARAGRAPHS)[:-300],
            "README.md": "about the folder",
            "n.zip": b"PK",
        },
    )


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    """Ends the process that parses documents when the tests have finished."""
    yield
    document_process().close()


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a text file with one document per line."""
    return write(tmp_path_factory.mktemp("lines"), {"j.txt": "".join(f"{text}\n" for text in PARAGRAPHS)}) / "j.txt"


def read_all(corpus: CorpusConfig, tmp_path: Path) -> tuple[list[str], Tally]:
    manifest, tally = build_manifest(corpus, Digests(tmp_path / "digests")), Tally()
    items = items_of(manifest, corpus)
    return [text for i, item in enumerate(items) for _, text in item_texts(i, item, corpus, tally)], tally


def test_mixed_files_are_read_and_unreadable_documents_are_counted(mixed: Path, lines: Path, tmp_path: Path) -> None:
    corpus = CorpusConfig(paths=[str(mixed), str(lines)])
    names = [Path(file).name for file in expand_paths(str(mixed))]
    assert names == sorted({file.name for file in mixed.iterdir()} - {"README.md", "n.zip"})
    check_readable(build_manifest(corpus, Digests(tmp_path / "digests")), corpus)
    texts, tally = read_all(corpus, tmp_path)
    assert tally.bad == {ENCRYPTED: 1, SCANNED: 1, BROKEN: 1}
    assert tally.first_bad[ENCRYPTED] == f"{mixed / 'k.pdf'}, record 1"
    assert len(texts) == 9 + len(PARAGRAPHS)
    assert sum(DARWIN in " ".join(text.split()) for text in texts) == 8
    with pytest.raises(DataError, match=r"3 of 15 records are unreadable: 1 document is encrypted") as caught:
        check_few_bad(tally, corpus.max_bad_fraction)
    assert "remove the password" in caught.value.fix
    assert "corpus.max_bad_fraction" in caught.value.fix


def test_a_folder_of_records_is_read_without_its_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "deep", {"notes.md": "# Notes", "page.html.gz": b"", "README.md": "about", "a.doc": b""})
    documents = [str(tmp_path / "deep" / name) for name in ("notes.md", "page.html.gz")]
    assert expand_paths(str(tmp_path)) == documents
    write(tmp_path, {"b.jsonl.gz": b"", "c.csv": ""})
    records = [str(tmp_path / name) for name in ("b.jsonl.gz", "c.csv")]
    capsys.readouterr()
    assert expand_paths(str(tmp_path)) == records
    said = capsys.readouterr().err
    assert "leaves out 2 documents (such as PDF or HTML files)" in said
    assert f"list their paths or a pattern, such as {documents[0]}" in said
    assert expand_paths(str(tmp_path)) == records
    assert "documents" not in capsys.readouterr().err
    assert expand_paths([str(tmp_path), str(tmp_path / "deep" / "*.html*")]) == [*records, documents[1]]


def test_pages_become_documents(mixed: Path, tmp_path: Path) -> None:
    texts, _ = read_all(CorpusConfig(paths=str(mixed / "c.pdf"), documents="page"), tmp_path)
    assert [text[:20] for text in texts] == [text[:20] for text in PARAGRAPHS]


def test_one_task_reads_many_documents_and_other_files_have_their_own(tmp_path: Path) -> None:
    pages = {f"{number:03d}.html": page([f"{DARWIN} {number}"]) for number in range(20)}
    write(tmp_path / "data", {**pages, "007.txt": "a text of a line\n", "empty.html": ""})
    corpus = CorpusConfig(paths=str(tmp_path / "data" / "*"))
    manifest = build_manifest(corpus, Digests(tmp_path / "digests"))
    items = [slices_of(item) for item in items_of(manifest, corpus)]
    assert [len(item) for item in items] == [8, 1, 12]
    assert DOCUMENTS_PER_ITEM >= 12
    assert [place.part for place in places_of(manifest, corpus)] == [0, 8, 9]
    paths = [slice.path for item in items for slice in item]
    assert paths == [part.path for part in manifest.parts if part.size]
    large = replace(manifest, parts=[replace(part, size=5 << 20) for part in manifest.parts])
    assert [len(slices_of(item)) for item in items_of(large, corpus)][:3] == [2, 2, 2]


def test_pages_of_a_web_archive(tmp_path: Path) -> None:
    records = [
        ("200 OK", "text/html; charset=windows-1252", page([AUSTEN + " déjà vu"]).encode("cp1252")),
        ("404 Not Found", "text/html", page([DARWIN]).encode()),
        ("200 OK", "image/png", b"\x89PNG"),
        ("200 OK", "application/pdf", pdf([DARWIN])),
        ("200 OK", "application/pdf", scanned_pdf()),
    ]
    write(
        tmp_path,
        {"a.warc.gz": warc(records), "b.warc": gzip.decompress(warc(records)), "c.warc.gz": warc(records)[:-90]},
    )
    for name in ("a.warc.gz", "b.warc"):
        texts = list(read_documents(tmp_path / name, LIMITS))
        assert "déjà vu" in texts[0]
        assert DARWIN in texts[1]
        assert [isinstance(text, Bad) for text in texts] == [False, False, True]
    texts = list(read_documents(tmp_path / "c.warc.gz", LIMITS))
    assert "déjà vu" in texts[0]
    assert isinstance(texts[-1], Bad)


def test_an_archive_that_was_cut_short_counts_as_broken(tmp_path: Path) -> None:
    text = ("200 OK", "text/html", page([DARWIN]).encode())
    packed = warc([text, ("200 OK", "image/png", b"\x89PNG" * 30), text])
    plain = gzip.decompress(packed)
    second, third = (place.start() for place in list(re.finditer(b"WARC/1.0", plain))[1:])
    ends = [*range(second + 9, third - 4, 40), *range(third + 1, len(plain) - 4, 40), len(plain) - 5]
    archives = [("a.warc.gz", packed[:-size]) for size in (1, 8, 9, 60)] + [("a.warc", plain[:end]) for end in ends]
    for name, data in archives:
        write(tmp_path, {name: data})
        first, *others, last = read_documents(tmp_path / name, LIMITS)
        assert DARWIN in first
        assert not [text for text in others if DARWIN not in text]
        assert last == Bad(BROKEN), (name, len(data))
    write(tmp_path, {"a.warc": plain})
    assert list(read_documents(tmp_path / "a.warc", replace(LIMITS, max_mib=0))) == [TOO_LARGE] * 2


def test_a_document_with_broken_pages_is_read_and_counted(tmp_path: Path) -> None:
    write(tmp_path, {"a.pdf": pdf_with_broken_page()})
    text, bad = read_documents(tmp_path / "a.pdf", LIMITS)
    assert AUSTEN in " ".join(text.split())
    assert not isinstance(text, Bad)
    assert bad == Bad(BROKEN_PAGES)
    assert isinstance(bad, Bad)


def test_files_that_are_too_large_are_counted(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a.pdf": pdf(PARAGRAPHS) + bytes(1 << 20),
            "b.html.gz": gzip.compress(bytes(2 << 20)),
            "c.html.gz": b"no gzip",
            "d.docx": zipped({"word/document.xml": b" " * (2 << 20)}),
        },
    )
    small = replace(LIMITS, max_mib=1)
    found = {
        name: list(read_documents(tmp_path / name, small)) for name in ("a.pdf", "b.html.gz", "c.html.gz", "d.docx")
    }
    assert found == {"a.pdf": [TOO_LARGE], "b.html.gz": [TOO_LARGE], "c.html.gz": [BROKEN], "d.docx": [TOO_LARGE]}
    assert all(isinstance(text, Bad) for texts in found.values() for text in texts)


HOSTILE = """
import os, signal, sys
from adapt.corpus.documents import document_reader
usual = document_reader.read_document
def read(kind, data, limits, encoding=None):
    if data == b"crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if data == b"spin":
        while True:
            pass
    if data == b"print":
        os.write(1, b"noise")
    if data == b"environment":
        return [" ".join(os.environ)]
    return usual("plain", data, limits)
document_reader.read_document = read
document_reader.main()
"""


def test_a_document_that_ends_the_reader_does_not_end_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hostile_reader.py").write_text(HOSTILE)
    monkeypatch.setattr(document_files, "PROGRAM", "hostile_reader")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "a secret")
    process = DocumentProcess()
    limits = replace(LIMITS, max_seconds=1)
    try:
        assert process.read("html", b"crash", limits) == Bad(CRASHED)
        assert process.read("html", b"a text", limits) == ["a text"]
        assert process.read("html", b"spin", limits) == Bad(TOO_SLOW)
        assert process.read("html", b"print", limits) == ["print"]
        (names,) = process.read("html", b"environment", limits)
        assert "HF_TOKEN" not in names
    finally:
        process.close()


class InterruptedOnce:
    """Imitates the output of the parsing process.

    The first read is interrupted, as if by ctrl-C or by the end of a Ray task.
    """

    def __init__(self, output: IO[bytes]) -> None:
        self._output, self._is_first = output, True

    def readline(self) -> bytes:
        if self._is_first:
            self._is_first = False
            raise KeyboardInterrupt
        return self._output.readline()

    def close(self) -> None:
        self._output.close()


def test_after_an_interrupt_each_document_has_its_own_text() -> None:
    process = DocumentProcess()
    try:
        assert process.read("plain", b"one", LIMITS) == ["one"]
        running = process._process
        assert running is not None
        assert running.stdout is not None
        running.stdout = InterruptedOnce(running.stdout)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            process.read("plain", b"two", LIMITS)
        assert [process.read("plain", text, LIMITS) for text in (b"three", b"four")] == [["three"], ["four"]]
        assert running.poll() == -signal.SIGKILL
    finally:
        process.close()


def test_modules_in_the_current_folder_are_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(("resource.py", "json.py"), "raise SystemExit(1)"))
    monkeypatch.chdir(tmp_path)
    process = DocumentProcess()
    try:
        assert process.read("plain", b"a text", LIMITS) == ["a text"]
    finally:
        process.close()


CONFUSED = """
import json, sys
while line := sys.stdin.buffer.readline():
    request = json.loads(line)
    document = sys.stdin.buffer.read(request["size"])
    other = json.dumps({"id": request.get("id", 0) - 1, "texts": ["the text of another document"]})
    print(other if document == b"other" else document.decode(), flush=True)
"""


@pytest.mark.parametrize("document", [b"other", b"no JSON", b"[1]", b"[" * 100_000])
def test_a_wrong_answer_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, document: bytes) -> None:
    (tmp_path / "confused_reader.py").write_text(CONFUSED)
    monkeypatch.setattr(document_files, "PROGRAM", "confused_reader")
    monkeypatch.syspath_prepend(tmp_path)
    process = DocumentProcess()
    try:
        assert process.read("plain", document, LIMITS) == Bad(CRASHED)
        assert process._process is None
    finally:
        process.close()


def test_a_forked_process_has_a_reader_of_its_own() -> None:
    mine = document_process()
    assert document_process() is mine
    child = os.fork()
    if not child:
        os._exit(document_process() is mine)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_reader_ends_with_its_parent() -> None:
    process = DocumentProcess()
    assert process.read("html", page(PARAGRAPHS).encode(), LIMITS)
    running = process._process
    assert running is not None
    process.close()
    assert running.returncode == 0


def test_missing_packages_are_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, mixed: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(document_files, "find_spec", lambda name: None if name == "pypdfium2" else name)
    check_packages("a.html", "html")
    with pytest.raises(ConfigError, match=r"c\.pdf cannot be read, .* not installed: pypdfium2") as caught:
        build_manifest(CorpusConfig(paths=str(mixed)), Digests(tmp_path / "digests"))
    assert "pip install 'dontstop[documents]'" in caught.value.fix


def test_documents_have_no_fields(mixed: Path) -> None:
    with pytest.raises(DataError, match=r"c\.pdf is a document, which has no fields"):
        next(read_objects(mixed / "c.pdf"))
    with pytest.raises(DataError, match=r"c\.pdf is a document, which has no field 'entities'"):
        check_field(mixed / "c.pdf", "entities", needs_fields=True)


def test_keys_know_packages_and_fields_only_of_documents(mixed: Path, lines: Path, tmp_path: Path) -> None:
    digests = Digests(tmp_path / "digests")
    corpus = CorpusConfig(paths=[str(mixed), str(lines)])
    formats = {part.path[-3:]: part.format for part in build_manifest(corpus, digests).parts}
    assert formats["txt"] == "text"
    assert formats["pdf"].startswith("pdf text 2 pypdfium2 ")
    usual = reading_identity(CorpusConfig(paths="a"), digests)
    assert not [name for name in usual if "document" in name]
    assert reading_identity(CorpusConfig(paths="a", documents="page"), digests) == {**usual, "documents": "page"}


def test_timers_are_the_signals_that_mean_too_slow() -> None:
    assert document_files.TIMERS == (signal.SIGPROF, signal.SIGALRM)
    assert document_reader.WALL_TIME > 1
