"""Tests that a file's name determines its format and compression, and that contents in another format are refused."""

import bz2
import gzip
import io
import json
import lzma
import re
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from adapt.config import CorpusConfig
from adapt.corpus.files.formats import format_of, is_divisible
from adapt.corpus.files.records import Reading, check_field, read_objects, read_records
from adapt.corpus.screening import Tally, check_few_bad
from adapt.support.errors import DataError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jsonl", ("jsonl", None)),
        ("a.b.json.gz", ("jsonl", "gzip")),
        ("a.TXT.ZST", ("text", "zstd")),
        ("2024.01.parquet", ("parquet", None)),
        ("a.ndjson.bz2", ("jsonl", "bz2")),
        ("a.tsv.xz", ("tsv", "xz")),
        ("a.htm", ("html", None)),
        ("a.PDF", ("pdf", None)),
        ("CC-MAIN-2024.warc.gz", ("warc", "gzip")),
    ],
)
def test_format_by_name(name: str, expected: tuple[str, str | None]) -> None:
    assert format_of(Path(name)) == expected


@pytest.mark.parametrize(
    "name", ["a", "a.doc", "a.gz", "a.jsonl.lz4", "a.parquet.gz", ".jsonl", "jsonl", "a.jsonl.gz.gz"]
)
def test_unknown_format(name: str) -> None:
    with pytest.raises(DataError, match=rf"{re.escape(name)} has no known format") as caught:
        format_of(Path("/folder") / name)
    assert ".jsonl.zst" in caught.value.fix


def test_only_lines_and_tables_are_divisible() -> None:
    assert all(is_divisible(f"a.{suffix}") for suffix in ("jsonl", "txt", "parquet", "arrow"))
    others = ("jsonl.gz", "txt.xz", "csv", "tsv", "html", "pdf", "docx", "md", "warc.gz")
    assert not any(is_divisible(f"a.{suffix}") for suffix in others)


def test_the_query_of_a_url_is_no_part_of_its_name() -> None:
    assert format_of("https://host/a.jsonl.gz?key=b.parquet") == ("jsonl", "gzip")


RECORDS = b"".join(b'{"text": "a document, number %d"}\n' % number for number in range(50))
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>404 Not\nFound</title></head><body>x</body></html>\n"
S3_ERROR = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>'
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
ARRAY = b'\xef\xbb\xbf[\r\n {"text": "a"},\r\n {"text": "b"}\r\n]\r\n'
LATIN = "".join(f"Überführung für größere Fälle, Nummer {number}, später\n" for number in range(20))


def zipped(name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, "x")
    return out.getvalue()


def tarred() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("a.jsonl")
        info.size = len(RECORDS)
        archive.addfile(info, io.BytesIO(RECORDS))
    return out.getvalue()


def table() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": ["a"]}), out)
    return out.getvalue()


CASES: dict[str, tuple[str, bytes, str, str]] = {
    "error page": ("a.jsonl", PAGE, r"is a web page \(404 Not Found\)", "download the file again"),
    "error page as text": ("a.txt", PAGE, "is a web page", "download"),
    "error page as csv": ("a.csv", PAGE, "is a web page", "download"),
    "error page as Parquet": ("a.parquet", PAGE, "is a web page", "download"),
    "error page as gzip": ("a.jsonl.gz", PAGE, "is a web page", "download"),
    "error page inside gzip": ("a.jsonl.gz", gzip.compress(PAGE), "is a web page", "download"),
    "error of a store": ("a.txt", S3_ERROR, r"is a web page \(AccessDenied\)", "download"),
    "pointer": ("a.jsonl", POINTER, "is a Git LFS pointer", "git lfs pull"),
    "pointer as text": ("a.txt", POINTER, "is a Git LFS pointer", "git lfs pull"),
    "pointer as csv": ("a.csv", POINTER, "is a Git LFS pointer", "git lfs pull"),
    "pointer as Parquet": ("a.parquet", POINTER, "is a Git LFS pointer", "git lfs pull"),
    "pointer as gzip": ("a.jsonl.gz", POINTER, "is a Git LFS pointer", "git lfs pull"),
    "gzip twice": (
        "a.jsonl.gz",
        gzip.compress(gzip.compress(RECORDS)),
        "is compressed twice: the decompressed content is a gzip file",
        "once",
    ),
    "zstd in gzip": ("a.txt.gz", gzip.compress(zstandard.compress(RECORDS)), "twice: the .* is a zstd file", "once"),
    "gzip in xz": ("a.csv.xz", lzma.compress(gzip.compress(RECORDS)), "twice: the .* is a gzip file", "once"),
    "gzip unnamed": ("a.jsonl", gzip.compress(RECORDS), "is compressed with gzip", r"a\.jsonl\.gz"),
    "bzip2 unnamed": ("a.txt", bz2.compress(RECORDS), "is compressed with bz2", r"a\.txt\.bz2"),
    "zstd as gzip": ("a.jsonl.gz", zstandard.compress(RECORDS), "with zstd, not with gzip", r"\.zst"),
    "plain as gzip": ("a.jsonl.gz", RECORDS, "is not compressed with gzip", r"remove \.gz from"),
    "plain as xz": ("a.jsonl.xz", RECORDS, "is not compressed with xz", r"remove \.xz from"),
    "zip": ("a.jsonl", zipped("a.jsonl"), "is a zip archive", "unpack"),
    "Excel": ("a.csv", zipped("xl/workbook.xml"), "is an Excel file", r"\.csv"),
    "Word": ("a.txt", zipped("word/document.xml"), "is a Word document", r"ends in \.docx"),
    "tar": ("a.jsonl.gz", gzip.compress(tarred()), "is a tar archive", "unpack"),
    "PDF": ("a.txt", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "is a PDF document", r"ends in \.pdf"),
    "Parquet": ("a.jsonl", table(), "is a Parquet file", r"\.parquet"),
    "UTF-16 with mark": ("a.txt", RECORDS.decode().encode("utf-16"), "is encoded as UTF-16", "iconv -f UTF-16 "),
    "UTF-16 without mark": ("a.csv", RECORDS.decode().encode("utf-16-le"), "as UTF-16LE", "iconv -f UTF-16LE"),
    "UTF-16 JSON": ("a.jsonl", RECORDS.decode().encode("utf-16-be"), "as UTF-16BE", "iconv -f UTF-16BE"),
    "UTF-32": ("a.txt", RECORDS.decode().encode("utf-32"), "is encoded as UTF-32", "iconv -f UTF-32"),
    "Latin-1": (
        "a.txt",
        LATIN.encode("latin-1"),
        r"not UTF-8 \(line 1\), but perhaps Latin-1",
        "iconv -f WINDOWS-1252",
    ),
    "GBK": ("a.txt", ("这是一个文件\n" * 9).encode("gbk"), "is not UTF-8", "another encoding, such as GBK"),
    "array": ("a.json", RECORDS.replace(b"\n", b",\n").join((b"[", b"{}]")), "is one JSON array", r"jq -c '\.\[\]'"),
    "array with a mark": ("a.json", ARRAY, "is one JSON array", r"jq -c '\.\[\]'"),
    "empty array": ("a.json", b"[]\n", "is one JSON array", "jq"),
    "spread objects": ("a.json", json.dumps({"text": "a"}, indent=1).encode(), "span several lines", r"jq -c \."),
    "strings": ("a.jsonl", b'"one"\n"two"\n', "has JSON strings on its lines", r"jq -c '\{text: \.\}'"),
    "JSON as text": ("a.txt", RECORDS, "are JSON objects, not text", r"ends in \.jsonl"),
    "Latin-1 with few letters": ("a.txt", "für größere\n".encode("latin-1") * 9, "perhaps Latin-1", "WINDOWS-1252"),
    "Cyrillic": ("a.txt", ("Привет мир\n" * 9).encode("cp1251"), "is not UTF-8", "replace WINDOWS-1252"),
    "JSON as csv": ("a.csv", RECORDS, "are JSON objects, not csv", r"ends in \.jsonl"),
    "zeros": ("a.txt", bytes(5000), "nothing but zero bytes", "copy or download"),
    "zeros as JSON": ("a.jsonl", bytes(5000), "nothing but zero bytes", "copy or download"),
    "a line for Excel": ("a.csv", b"sep=,\ntext,label\na,b\n", "begins with the line 'sep=,'", "remove that line"),
    "csv without a header": ("a.csv", b"some text,1\nmore,0\n", "has no field 'text'", "names of its columns"),
    "csv as JSON": ("a.jsonl", b"text,label\na,b\n", "has no readable record", "the suffix of its format"),
    "numbers": ("a.jsonl", b'{"text": 1}\n{"text": 2}\n', "text is not a string", "text_field"),
    "old Mac": ("a.txt", b"one line\ranother\rand one\r", "carriage returns alone", r"tr '\\r' '\\n'"),
}


@pytest.mark.parametrize("case", CASES)
def test_contents_of_other_formats_are_named_with_a_fix(tmp_path: Path, case: str) -> None:
    name, content, says, fix = CASES[case]
    path = tmp_path / name
    path.write_bytes(content)
    readers = [lambda: list(read_records(path, Reading()))]
    if "not a string" not in says:
        readers.append(lambda: check_field(path, "text"))
    if format_of(path)[0] != "text" and "not a string" not in says and "no field" not in says:
        readers.append(lambda: list(read_objects(path)))
    for read in readers:
        with pytest.raises(DataError, match=says) as caught:
            read()
        assert str(path) in caught.value.what
        assert re.search(fix, caught.value.fix)


GOOD = {
    "a.txt": b"<p>A line of markup is text.</p>\n{braces} too\n",
    "b.txt": b"[1] A reference.\n[2] Another.\n",
    "c.txt": b"caf\xc3\xa9\r\nprogress 1\rprogress 2\r\n",
    "d.jsonl": b'{"text": "<!doctype html><html>"}\n',
    "h.jsonl": b'{"text": "a", "x": {"text": 1}, "y": [{"text": 2}]}\n',
    "e.txt": b"BZh is no mark of compression alone\n",
    "f.txt": b'{"text": "one"}\nand a line that is none\nand another\n',
    "g.txt": b"version 2 of this\n",
}


@pytest.mark.parametrize("name", GOOD)
def test_text_that_begins_like_another_format_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(GOOD[name])
    check_field(tmp_path / name, "text")
    assert list(read_records(tmp_path / name, Reading()))


@pytest.mark.parametrize("suffix", ["gz", "xz"])
def test_zeros_after_the_end_of_a_compressed_file_are_ignored(tmp_path: Path, suffix: str) -> None:
    compress = {"gz": gzip.compress, "xz": lzma.compress}[suffix]
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(compress(RECORDS) + bytes(512) + compress(RECORDS) + bytes(1024))
    assert len(list(read_records(path, Reading()))) == 100
    path.write_bytes(compress(RECORDS) + bytes(512) + b"garbage")
    with pytest.raises(DataError, match=r"a\.jsonl\.\w+ is broken"):
        list(read_records(path, Reading()))


def test_a_damaged_second_stream_of_xz_is_an_error(tmp_path: Path) -> None:
    second = bytearray(lzma.compress(RECORDS))
    second[0] ^= 0xFF
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(lzma.compress(RECORDS) + second)
    with pytest.raises(DataError, match="is broken"):
        list(read_records(path, Reading()))


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("a.zip", "unpack"),
        ("a.tar.gz", "unpack"),
        ("a.xlsx", "save it as .csv"),
        ("a.odt", "save it as .docx"),
        ("a.log", "ends in .txt"),
        ("a.pdf.gz", "decompress the file"),
        ("a.parquet.gz", "decompress the file"),
        ("a.jsonl.zip", "unpack"),
        ("a", "a file name must end in .jsonl"),
    ],
)
def test_names_of_other_formats_are_refused_with_a_fix(name: str, fix: str) -> None:
    with pytest.raises(DataError, match=rf"{name} has no known format") as caught:
        format_of(name)
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("column", "says", "fix"),
    [
        (pa.array([{"en": "a", "de": "b"}]), "struct", "write 'en', 'de' as separate columns"),
        (pa.array([["a", "b"]]), "list", "join the entries"),
        (pa.array([b"a"]), "binary", "cast it to string"),
    ],
)
def test_columns_of_other_types_than_text_are_refused(tmp_path: Path, column: pa.Array, says: str, fix: str) -> None:
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=f"field 'text' of .* is {says}") as caught:
        check_field(tmp_path / "a.parquet", "text")
    assert fix in caught.value.fix


def test_fields_inside_other_fields_are_refused_with_a_fix(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"document": {"text": "a"}}\n')
    with pytest.raises(DataError, match=r"has no field 'document\.text'; it has 'document'") as caught:
        check_field(tmp_path / "a.jsonl", "document.text")
    assert "jq -c '{text: .document.text}'" in caught.value.fix


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("invalid UTF-8", "iconv -f WINDOWS-1252"),
        ("malformed JSON: a comma follows the object", "without commas between them"),
    ],
)
def test_the_fix_knows_common_reasons(reason: str, fix: str) -> None:
    with pytest.raises(DataError) as caught:
        check_few_bad(Tally(1, {reason: 1}, first_bad={reason: "a, record 1"}), 0.01)
    assert fix in caught.value.fix
    assert "corpus.max_bad_fraction" in caught.value.fix


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a"},\r\n', "malformed JSON: a comma follows the object"),
        (b'{"text": "a' + bytes(100) + b'"}\n', "malformed JSON"),
        (bytes(100) + b"\n", "malformed JSON: zero bytes"),
        (b"{'text': 'a'}\n", "malformed JSON: names in single quotes"),
        (b'{"text": "a"} x,\n', "malformed JSON"),
    ],
)
def test_lines_that_are_almost_json_are_bad_with_a_reason(tmp_path: Path, line: bytes, reason: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(RECORDS + line)
    assert list(read_records(tmp_path / "a.jsonl", Reading()))[-1] == reason
    assert CorpusConfig().max_bad_fraction < 0.05


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.jsonl.gz"])
def test_a_file_without_a_readable_record_is_refused(tmp_path: Path, name: str) -> None:
    content = {"jsonl": b"no JSON\n" * 20, "csv": b"id,text\n" + b"1\n" * 20, "tsv": b"id\ttext\n" + b"1\n" * 20}
    raw = content[name.split(".")[1]]
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    for read in (read_records(tmp_path / name, Reading()), read_objects(tmp_path / name)):
        with pytest.raises(DataError, match=r"a\.\w+(\.gz)? has no readable record; the first of 20 is unreadable"):
            list(read)


def test_a_range_whose_only_record_is_too_long_is_not_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "%s"}\n' % (b"x" * 5000) + RECORDS)
    assert list(read_records(tmp_path / "a.jsonl", Reading(max_bytes=1000, stop=10))) == [
        "longer than corpus.max_record_mib"
    ]
    assert len(list(read_records(tmp_path / "a.jsonl", Reading(max_bytes=1000)))) == 51
