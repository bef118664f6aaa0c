"""Tests that every format gives the same texts in order, and that damaged records and files are reported."""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import random
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from adapt.corpus.files.formats import SUFFIXES, Bad
from adapt.corpus.files.lines import parse_line
from adapt.corpus.files.manifest import expand_paths
from adapt.corpus.files.records import Reading, Span, batches, check_field, read_records, schema_of
from adapt.support.errors import DataError

TEXTS = [
    "A plain sentence.",
    "",
    '  quotes " and \\ backslashes, {"text": "not this"}  ',
    "naïve café, 東京, Привет, \U0001f600",
    "a line separator \u2028, a next line \x85 and a form feed \x0c end no record",
    "the same again",
    "the same again",
    *(f"document number {number}" for number in range(3000)),  # more records than the reader reads in one batch
]


def jsonl(texts: list[str], newline: str = "\n", last: str = "\n") -> bytes:
    records = [json.dumps({"id": i, "text": text}, ensure_ascii=i % 2 == 0) for i, text in enumerate(texts)]
    return (newline.join(records) + last).encode()


def lines(texts: list[str], newline: str = "\n", last: str = "\n") -> bytes:
    return (newline.join(texts) + last).encode()


def read(path: Path, text_field: str = "text", text_unit: str = "line") -> list[str]:
    return list(read_records(path, Reading(text_field, text_unit)))


def in_parts(compress: Callable[[bytes], bytes], content: bytes) -> bytes:
    """Compresses content as several streams in one file, as `cat a.gz b.gz` and pigz do.

    A stream may end inside a line.
    """
    cuts = [0, 7, len(content) // 3, len(content) // 2, len(content)]
    return b"".join(compress(content[start:stop]) for start, stop in pairwise(cuts))


def streamed_zstd(content: bytes) -> bytes:
    # the stream's header does not contain the length of the content
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(content) + compressor.flush()


CONTAINERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "plain": ("", bytes),
    "gzip": (".gz", gzip.compress),
    "gzip in parts": (".gz", lambda content: in_parts(gzip.compress, content)),
    "zstd": (".zst", zstandard.compress),
    "zstd in parts": (".zst", lambda content: in_parts(zstandard.compress, content)),
    "zstd of unknown length": (".zst", streamed_zstd),
    "xz": (".xz", lzma.compress),
    "xz in parts": (".xz", lambda content: in_parts(lzma.compress, content)),
    "bzip2": (".bz2", bz2.compress),
    "bzip2 in parts": (".bz2", lambda content: in_parts(bz2.compress, content)),
}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(("newline", "last"), [("\n", "\n"), ("\r\n", "\r\n"), ("\n", "")])
def test_jsonl_and_text_in_every_container(tmp_path: Path, container: str, newline: str, last: str) -> None:
    suffix, compress = CONTAINERS[container]
    for name in ("corpus.jsonl", "corpus.json", "CORPUS.JSONL"):
        path = tmp_path / f"{name}{suffix}"
        path.write_bytes(compress(jsonl(TEXTS, newline, last)))
        assert read(path) == TEXTS
    path = tmp_path / f"corpus.v2.txt{suffix}"
    path.write_bytes(compress(lines(TEXTS, newline, last)))
    assert [text.removesuffix("\n").removesuffix("\r") for text in read(path)] == TEXTS


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_parquet(tmp_path: Path, compression: str, kind: str) -> None:
    values = pa.array(TEXTS)
    values = values.dictionary_encode() if kind == "dictionary" else values.cast(getattr(pa, kind)())
    path = tmp_path / "corpus.parquet"
    table = pa.table({"id": range(len(TEXTS)), "text": values, "text_b": ["other"] * len(TEXTS)})
    pq.write_table(table, path, compression=compression, row_group_size=700)
    assert read(path) == TEXTS


def test_parquet_column_with_a_dot_in_its_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"doc": [1, 2], "doc.text": ["a", "b"]}), tmp_path / "corpus.parquet")
    assert read(tmp_path / "corpus.parquet", "doc.text") == ["a", "b"]


@pytest.mark.parametrize(("kind", "mark"), [("csv", ","), ("tsv", "\t")])
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_csv_as_the_library_of_python_writes_it(tmp_path: Path, kind: str, mark: str, suffix: str) -> None:
    texts = [*TEXTS, "two\nlines\r\nand a third", f"with {mark} mark"]
    made = io.StringIO()
    writer = csv.writer(made, delimiter=mark)
    writer.writerows([["id", "text"], *enumerate(texts)])
    path = tmp_path / f"corpus.{kind}{suffix}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](made.getvalue().encode()))
    check_field(path, "text")
    assert read(path) == texts
    assert read(path, "id") == [str(number) for number in range(len(texts))]


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("type_", ["string", "large_string", "dictionary"])
def test_arrow(tmp_path: Path, kind: str, type_: str) -> None:
    values = pa.array(TEXTS)
    values = values.dictionary_encode() if type_ == "dictionary" else values.cast(getattr(pa, type_)())
    table = pa.table({"id": range(len(TEXTS)), "text": values})
    path = tmp_path / "corpus.arrow"
    with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=700)
    check_field(path, "text")
    assert read(path) == TEXTS
    whole = path.read_bytes()
    for damaged in (b"", whole[:5], whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=re.escape(str(path))):
            read(path)


def test_what_the_datasets_library_saves(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "saved")
    assert [text for path in expand_paths(str(tmp_path / "saved")) for text in read(Path(path))] == TEXTS


def test_a_text_field_of_another_name(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"text": "not this", "body": "this"}\n')
    assert read(path, "body") == ["this"]


def test_blank_lines_in_jsonl_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'\n{"text": "a"}\n  \r\n\t\n{"text": "b"}\n\n')
    assert read(path) == ["a", "b"]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_paragraphs(tmp_path: Path, newline: str) -> None:
    path = tmp_path / "corpus.txt"
    content = ["", " ", "one line", "", "\t ", "", "two", "  lines", "", "the last"]
    path.write_bytes(newline.join(content).encode())
    paragraphs = ["one line", "two\n  lines", "the last"]
    assert [text.replace("\r", "").strip("\n") for text in read(path, text_unit="paragraph")] == paragraphs
    path.write_bytes(newline.join([*content, "", "", ""]).encode())
    assert len(read(path, text_unit="paragraph")) == 3


@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if suffix not in (".parquet", ".arrow")])
def test_an_empty_file_has_no_records(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus{suffix}"
    for content in {b"", gzip.compress(b"")} if suffix.endswith(".gz") else {b""}:
        path.write_bytes(content)
        check_field(path, "text")
        assert read(path) == read(path, text_unit="paragraph") == []


def test_parquet_without_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "corpus.parquet")
    assert read(tmp_path / "corpus.parquet") == []


def test_a_byte_order_mark_is_removed(tmp_path: Path) -> None:
    for name, content in (("a.jsonl", jsonl(TEXTS)), ("a.txt", lines(TEXTS)), ("a.txt.gz", lines(TEXTS))):
        marked = codecs.BOM_UTF8 + content
        (tmp_path / name).write_bytes(gzip.compress(marked) if name.endswith(".gz") else marked)
        check_field(tmp_path / name, "text")
        assert [text.removesuffix("\n") for text in read(tmp_path / name)] == TEXTS
    assert read(tmp_path / "a.txt", text_unit="paragraph")[0].startswith("A plain")


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_line_longer_than_the_buffers_is_read(tmp_path: Path, suffix: str) -> None:
    long = "a long line é " * 700_000  # about 10 MB, larger than the reader's buffers
    compress = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[suffix]
    path = tmp_path / f"corpus.jsonl{suffix}"
    path.write_bytes(compress(jsonl(["before", long, "after"])))
    assert read(path) == ["before", long, "after"]
    path = tmp_path / f"corpus.txt{suffix}"
    path.write_bytes(compress(lines(["before", long, "after"])))
    assert [text.removesuffix("\n") for text in read(path)] == ["before", long, "after"]


# Tests of records without text


BAD_LINES = {
    b'{"text": "cut sho': "malformed JSON",
    b'{"text": "two"} {"text": "objects"}': "malformed JSON",
    b"no JSON at all": "malformed JSON",
    b"[" * 100_000: "malformed JSON",
    b'{"text": "\xff\xfe"}': "invalid UTF-8",
    b'{"text": "caf\xe9"}': "invalid UTF-8",
    b'{"body": "text"}': "no text",
    b'{"text": null}': "no text",
    b'{"text": 5}': "text is not a string",
    b'{"text": ["a"]}': "text is not a string",
    b'{"text": {"text": "a"}}': "text is not a string",
    b'["text"]': "not a JSON object",
    b'"text"': "not a JSON object",
    b"null": "not a JSON object",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_reported_and_does_not_affect_others(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(jsonl(["before"]) + line + b"\n" + jsonl(["after"]))
    records = read(path)
    assert records == ["before", BAD_LINES[line], "after"]
    assert [isinstance(record, Bad) for record in records] == [False, True, False]


ODD_LINES = [
    b'  {"text": "blanks around"}  \n',
    b'\xef\xbb\xbf{"text": "a mark of the encoding"}\n',
    '{"text": "two bytes a letter"}'.encode("utf-16-le"),
    b'{"text": "half \xed\xa0\xbd a letter"}\n',
    b'{"text": "\\ud83d", "text": "twice", "x": NaN}\r\n',
    b'{"text": "no end"}',
]


@pytest.mark.parametrize("line", [*ODD_LINES, *BAD_LINES, b'{"text": "a"}\x0b', b'{"text": "a"}\xc2\xa0\n', b"5\x00"])
def test_lines_are_parsed_like_json_loads(line: bytes) -> None:
    def parsed(parse: Callable[[bytes], Any]) -> str:
        try:
            return repr(parse(line))
        except (ValueError, RecursionError) as error:
            return repr(error)

    assert parsed(parse_line) == parsed(json.loads)


def test_a_text_equal_to_a_reason_is_not_bad(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_bytes(jsonl(["malformed JSON"]))
    assert not isinstance(read(tmp_path / "corpus.jsonl")[0], Bad)


@pytest.mark.parametrize("unit", ["line", "paragraph"])
def test_invalid_utf8_in_plain_text_is_bad(tmp_path: Path, unit: str) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"before\n\nlatin caf\xe9 one\n\nafter\n")
    records = [record for record in read(path, text_unit=unit) if record.strip()]
    assert [record.strip() for record in records] == ["before", "invalid UTF-8", "after"]
    assert [isinstance(record, Bad) for record in records] == [False, True, False]


def test_unreadable_csv_rows_are_bad(tmp_path: Path) -> None:
    path = tmp_path / "corpus.csv"
    path.write_bytes(b"id,text\n1,before\n2\n3,one,more\n\n4,caf\xe9\n5,after\n")
    records = read(path)
    assert records == [
        "before",
        *["row with more or fewer columns than the header"] * 2,
        "invalid UTF-8",
        "after",
    ]
    assert [isinstance(record, Bad) for record in records] == [False, True, True, True, False]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "txt", "parquet"])
@pytest.mark.parametrize("letter", ["xx", "é"])  # 1200 bytes
def test_a_record_over_the_limit_is_skipped_as_bad(tmp_path: Path, kind: str, suffix: str, letter: str) -> None:
    texts = ["before", letter * 600, "after"]
    path = tmp_path / f"corpus.{kind}{suffix if kind != 'parquet' else ''}"
    if kind == "parquet":
        pq.write_table(pa.table({"text": texts}), path)
    else:
        content = jsonl(texts) if kind == "jsonl" else lines(["text", *texts] if kind == "csv" else texts)
        path.write_bytes(gzip.compress(content) if suffix else content)
    records = list(read_records(path, Reading(max_bytes=1000)))
    assert [record.strip() for record in records] == ["before", "longer than corpus.max_record_mib", "after"]
    assert isinstance(records[1], Bad)


def test_parquet_values_that_are_not_text_are_bad(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    not_utf8 = pa.array([b"before", None, b"\xff\xfe", b"after"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": not_utf8}), path)
    records = read(path)
    assert records == ["before", "no text", "invalid UTF-8", "after"]
    assert [isinstance(record, Bad) for record in records] == [False, True, True, False]
    pq.write_table(pa.table({"text": pa.array([None, None])}), path)
    with pytest.raises(DataError, match=r"corpus\.parquet has no readable record; the first of 2 .*: no text"):
        read(path)
    pq.write_table(pa.table({"text": [1, 2]}), path)
    with pytest.raises(DataError, match=r"field 'text' of .*corpus\.parquet is int64, not text"):
        read(path)


# Tests of broken files


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


def incompressible(kind: str = "jsonl") -> bytes:
    draw = random.Random(0)
    texts = [f"document {draw.random()}" for _ in range(5000)]
    return jsonl(texts) if kind == "jsonl" else lines(["text", *texts] if kind == "csv" else texts)


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("kind", ["jsonl", "txt", "csv"])
def test_files_cut_short_anywhere_are_broken(tmp_path: Path, suffix: str, kind: str) -> None:
    whole = COMPRESSORS[suffix](incompressible(kind))
    path = tmp_path / f"corpus.{kind}{suffix}"
    path.write_bytes(whole)
    assert len(read(path)) == 5000
    for kept in (1, 5, 10, 11, 100, len(whole) // 2, len(whole) - 9, len(whole) - 4, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(DataError, match=re.escape(str(path))) as caught:
            read(path)
        assert caught.value.fix


def test_a_second_gzip_stream_cut_short_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(jsonl(["a"])) + gzip.compress(jsonl(["b"]))[:-6])
    with pytest.raises(DataError, match=re.escape(str(path))):
        read(path)


@pytest.mark.parametrize("place", [0.5, -6])
def test_flipped_bits_in_gzip_are_detected(tmp_path: Path, place: float) -> None:
    content = bytearray(gzip.compress(incompressible()))
    content[int(place) if place < 0 else int(place * len(content))] ^= 0xFF
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(str(path))):
        read(path)


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".txt.gz", ".parquet"])
def test_contents_that_differ_from_the_name_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus{suffix}"
    path.write_bytes(jsonl(["long enough to be looked at"] * 10))
    with pytest.raises(DataError, match=re.escape(str(path))) as caught:
        read(path)
    assert "\n" not in caught.value.what
    if not suffix.startswith(".txt"):
        with pytest.raises(DataError, match=re.escape(str(path))):
            check_field(path, "text")


def test_parquet_files_cut_short_or_overwritten_are_broken(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"text": [f"document {number}" for number in range(10_000)]}), path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:1], whole[: len(whole) // 2], whole[:-1], whole[:200] + bytes(1800) + whole[2000:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=re.escape(str(path))):
            read(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".txt", ".parquet"])
def test_a_missing_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"absent{suffix}"
    with pytest.raises(DataError, match=f"{re.escape(str(path))} does not exist"):
        read(path)


TABLE = pa.table({"id": range(1000), "text": [f"text {number}" for number in range(1000)]})


def write(path: Path) -> str:
    """Writes TABLE as ten row groups (Parquet) or record batches (Arrow), and returns the name of the format."""
    if path.suffix == ".parquet":
        pq.write_table(TABLE, path, row_group_size=100)
        return "parquet"
    new = pa.ipc.new_file if path.stem == "file" else pa.ipc.new_stream
    with new(str(path), TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=100)
    return "arrow"


@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "stream.arrow"])
@pytest.mark.parametrize("parts", [1, 2, 3, 25])
def test_ranges_together_contain_each_row_once_in_order(tmp_path: Path, name: str, parts: int) -> None:
    path = tmp_path / name
    kind, size = write(path), 0
    size = path.stat().st_size
    cuts = [size * part // parts for part in range(parts + 1)]
    counts, found = [], []
    for start, stop in pairwise(cuts):
        with path.open("rb") as file:
            assert schema_of(file, kind) == TABLE.schema
            file.seek(0)
            rows = [text for batch in batches(file, kind, ["text"], Span(start, stop, size)) for text in batch["text"]]
        counts.append(len(rows))
        found += [text.as_py() for text in rows]
    assert found == TABLE["text"].to_pylist()
    if parts == 2 and name != "stream.arrow":
        assert counts == [500, 500]


@given(st.integers(1, 50), st.integers(1, 1000), st.sets(st.integers(1, 999), max_size=5))
def test_spans_that_divide_a_file_contain_each_group_once(count: int, size: int, cuts: set[int]) -> None:
    borders = [0, *sorted(cut for cut in cuts if cut < size), size]
    taken = [number for start, stop in pairwise(borders) for number in Span(start, stop, size).takes(count)]
    assert taken == list(range(count))
