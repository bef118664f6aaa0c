"""Every format gives the same texts in the same order, and every kind of damage is either counted or named."""

import codecs
import gzip
import json
import random
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from adapt.corpus.formats import SUFFIXES, Bad, check_field, format_of, read_records
from adapt.errors import DataError

TEXTS = [
    "A plain sentence.",
    "",
    '  quotes " and \\ backslashes, {"text": "not this"}  ',
    "naïve café, 東京, Привет, \U0001f600",
    "a line separator \u2028, a next line \x85 and a form feed \x0c end no record",
    "the same again",
    "the same again",
    *(f"document number {number}" for number in range(3000)),  # more than one of the reader's batches
]


def jsonl(texts: list[str], newline: str = "\n", last: str = "\n") -> bytes:
    records = [json.dumps({"id": i, "text": text}, ensure_ascii=i % 2 == 0) for i, text in enumerate(texts)]
    return (newline.join(records) + last).encode()


def lines(texts: list[str], newline: str = "\n", last: str = "\n") -> bytes:
    return (newline.join(texts) + last).encode()


def read(path: Path, text_field: str = "text", text_unit: str = "line") -> list[str]:
    return list(read_records(path, text_field, text_unit))


def in_parts(compress: Callable[[bytes], bytes], content: bytes) -> bytes:
    """Several compressed streams one after another, cut anywhere, as `cat a.gz b.gz` and pigz make them."""
    cuts = [0, 7, len(content) // 3, len(content) // 2, len(content)]
    return b"".join(compress(content[start:stop]) for start, stop in pairwise(cuts))


def streamed_zstd(content: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()  # a stream does not know its length when it begins
    return compressor.compress(content) + compressor.flush()


CONTAINERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "plain": ("", bytes),
    "gzip": (".gz", gzip.compress),
    "gzip in parts": (".gz", lambda content: in_parts(gzip.compress, content)),
    "zstd": (".zst", zstandard.compress),
    "zstd in parts": (".zst", lambda content: in_parts(zstandard.compress, content)),
    "zstd of unknown length": (".zst", streamed_zstd),
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


def test_another_field(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"text": "not this", "body": "this"}\n')
    assert read(path, "body") == ["this"]


def test_blank_lines_in_jsonl_are_no_records(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if suffix != ".parquet"])
def test_nothing_in_the_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus{suffix}"
    for content in {b"", gzip.compress(b"")} if suffix.endswith(".gz") else {b""}:
        path.write_bytes(content)
        check_field(path, "text")
        assert read(path) == read(path, text_unit="paragraph") == []


def test_parquet_without_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "corpus.parquet")
    assert read(tmp_path / "corpus.parquet") == []


def test_byte_order_mark(tmp_path: Path) -> None:
    for name, content in (("a.jsonl", jsonl(TEXTS)), ("a.txt", lines(TEXTS)), ("a.txt.gz", lines(TEXTS))):
        marked = codecs.BOM_UTF8 + content
        (tmp_path / name).write_bytes(gzip.compress(marked) if name.endswith(".gz") else marked)
        check_field(tmp_path / name, "text")
        assert [text.removesuffix("\n") for text in read(tmp_path / name)] == TEXTS
    assert read(tmp_path / "a.txt", text_unit="paragraph")[0].startswith("A plain")


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_very_long_line(tmp_path: Path, suffix: str) -> None:
    long = "a long line é " * 700_000  # about 10 MB: several of the reader's buffers
    compress = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[suffix]
    path = tmp_path / f"corpus.jsonl{suffix}"
    path.write_bytes(compress(jsonl(["before", long, "after"])))
    assert read(path) == ["before", long, "after"]
    path = tmp_path / f"corpus.txt{suffix}"
    path.write_bytes(compress(lines(["before", long, "after"])))
    assert [text.removesuffix("\n") for text in read(path)] == ["before", long, "after"]


# Records without text


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
def test_a_bad_line_is_told_from_a_text_and_costs_no_other(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(jsonl(["before"]) + line + b"\n" + jsonl(["after"]))
    records = read(path)
    assert records == ["before", BAD_LINES[line], "after"]
    assert [isinstance(record, Bad) for record in records] == [False, True, False]


def test_a_text_that_reads_like_a_reason_is_a_text(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_bytes(jsonl(["malformed JSON"]))
    assert not isinstance(read(tmp_path / "corpus.jsonl")[0], Bad)


@pytest.mark.parametrize("unit", ["line", "paragraph"])
def test_invalid_utf8_in_text(tmp_path: Path, unit: str) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"before\n\nlatin caf\xe9 one\n\nafter\n")
    records = [record for record in read(path, text_unit=unit) if record.strip()]
    assert [record.strip() for record in records] == ["before", "invalid UTF-8", "after"]
    assert [isinstance(record, Bad) for record in records] == [False, True, False]


def test_parquet_values_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    not_utf8 = pa.array([b"before", None, b"\xff\xfe", b"after"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": not_utf8}), path)
    records = read(path)
    assert records == ["before", "no text", "invalid UTF-8", "after"]
    assert [isinstance(record, Bad) for record in records] == [False, True, True, False]
    pq.write_table(pa.table({"text": [1, 2]}), path)
    assert read(path) == ["text is not a string"] * 2


# Broken files


def incompressible() -> bytes:
    draw = random.Random(0)
    return jsonl([f"document {draw.random()}" for _ in range(5000)])


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_cut_short_anywhere(tmp_path: Path, suffix: str, kind: str) -> None:
    whole = (gzip.compress if suffix == ".gz" else zstandard.compress)(incompressible())
    path = tmp_path / f"corpus.{kind}{suffix}"
    path.write_bytes(whole)
    assert len(read(path)) == 5000
    for kept in (1, 5, 10, 11, 100, len(whole) // 2, len(whole) - 9, len(whole) - 4, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(DataError, match=re.escape(str(path))) as caught:
            read(path)
        assert caught.value.fix


def test_second_part_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(jsonl(["a"])) + gzip.compress(jsonl(["b"]))[:-6])
    with pytest.raises(DataError, match=re.escape(str(path))):
        read(path)


@pytest.mark.parametrize("place", [0.5, -6])
def test_flipped_bits_in_gzip(tmp_path: Path, place: float) -> None:
    content = bytearray(gzip.compress(incompressible()))
    content[int(place) if place < 0 else int(place * len(content))] ^= 0xFF
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(str(path))):
        read(path)


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".txt.gz", ".parquet"])
def test_not_what_its_name_says(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus{suffix}"
    path.write_bytes(jsonl(["long enough to be looked at"] * 10))
    with pytest.raises(DataError, match=re.escape(str(path))) as caught:
        read(path)
    assert "\n" not in caught.value.what
    if not suffix.startswith(".txt"):
        with pytest.raises(DataError, match=re.escape(str(path))):
            check_field(path, "text")


def test_parquet_cut_short_or_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"text": [f"document {number}" for number in range(10_000)]}), path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:1], whole[: len(whole) // 2], whole[:-1], whole[:200] + bytes(1800) + whole[2000:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=re.escape(str(path))):
            read(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".txt", ".parquet"])
def test_no_such_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"absent{suffix}"
    with pytest.raises(DataError, match=f"{re.escape(str(path))} does not exist"):
        read(path)


# Names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jsonl", ("jsonl", None)),
        ("a.b.json.gz", ("jsonl", "gzip")),
        ("a.TXT.ZST", ("text", "zstd")),
        ("2024.01.parquet", ("parquet", None)),
    ],
)
def test_format_by_name(name: str, expected: tuple[str, str | None]) -> None:
    assert format_of(Path(name)) == expected


@pytest.mark.parametrize(
    "name", ["a", "a.csv", "a.gz", "a.jsonl.bz2", "a.parquet.gz", ".jsonl", "jsonl", "a.jsonl.gz.gz"]
)
def test_unknown_format(name: str) -> None:
    with pytest.raises(DataError, match=rf"{re.escape(name)} has no known format") as caught:
        format_of(Path("/folder") / name)
    assert ".jsonl.zst" in caught.value.fix


def test_wrong_field_names_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\nbroken\n{"body": "x", "title": "y"}\n')
    pq.write_table(pa.table({"body": ["x"], "title": ["y"]}), tmp_path / "a.parquet")
    for path in (tmp_path / "a.jsonl", tmp_path / "a.parquet"):
        with pytest.raises(DataError, match=r"no field 'text'; it has 'body', 'title'") as caught:
            check_field(path, "text")
        assert str(path) in caught.value.what
        assert "corpus.text_field" in caught.value.fix
        check_field(path, "title")
    with pytest.raises(DataError, match="'body', 'title'"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("line", [b"broken", b"[" * 100_000, b"\xff"], ids=["broken", "deep", "not UTF-8"])
def test_field_of_a_file_that_begins_badly(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes((line + b"\n") * 3 + b'{"body": "x"}\n')
    with pytest.raises(DataError, match="it has 'body'"):
        check_field(path, "text")
    path.write_bytes((line + b"\n") * 3)
    check_field(path, "text")  # the job counts these, and says so


def test_text_has_no_fields(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x\n")
    check_field(tmp_path / "a.txt", "anything")
