"""Tests that the rows of shards contain all tokens of the written documents, in order and unchanged."""

import errno
import pickle
import random
import re
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapt.corpus import token_shards
from adapt.corpus.token_shards import TokenStream, write_shard
from adapt.runner import Record
from adapt.support.errors import DataError
from adapt.support.schema import HELDOUT_GLOB, SHARD_GLOB

Documents = list[list[int]]


def write(folder: Path, shards: list[Documents], vocabulary_size: int = 1000) -> TokenStream:
    for number, documents in enumerate(shards):
        write_shard(folder / f"train-{number:06d}-000000.arrow", documents, vocabulary_size)
    return TokenStream.open(folder, SHARD_GLOB)


def joined(documents: Documents) -> list[int]:
    return [token for document in documents for token in document]


def random_documents(count: int, longest: int, vocabulary_size: int = 1000, seed: int = 0) -> Documents:
    draw = random.Random(seed)
    return [[draw.randrange(vocabulary_size) for _ in range(draw.randint(1, longest))] for _ in range(count)]


@settings(max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=30).filter(any),
    cuts=st.lists(st.integers(0, 30), max_size=6),
    sequence_length=st.integers(1, 20),
)
def test_rows_contain_the_tokens_of_all_documents_in_order(
    lengths: list[int], cuts: list[int], sequence_length: int
) -> None:
    numbers = iter(range(10_000))
    # no token occurs twice, so tokens show their position
    documents = [[next(numbers) for _ in range(length)] for length in lengths]
    everything = joined(documents)
    # a shard between two equal bounds is empty
    places = [0, *sorted(min(cut, len(documents)) for cut in cuts), len(documents)]
    shards = [documents[start:stop] for start, stop in pairwise(places)]
    with tempfile.TemporaryDirectory() as folder:
        stream = write(Path(folder), shards, vocabulary_size=10_000)
        rows = stream.rows(sequence_length)
        taken = stream.take(range(rows), sequence_length)
        tokens, filled = taken["tokens"], taken["lengths"]
        assert stream.tokens == len(everything)
        assert tokens.shape == (rows, sequence_length)
        assert [token for row, length in zip(tokens, filled, strict=True) for token in row[:length]] == everything
        assert filled[:-1].tolist() == [sequence_length] * (rows - 1)
        assert 1 <= filled[-1] <= sequence_length
        assert not tokens[-1, filled[-1] :].any()
        assert stream.documents == len(documents)
        assert [stream.document(number).tolist() for number in range(len(documents))] == documents
        with pytest.raises(IndexError):
            stream.document(len(documents))


@given(st.data())
@settings(max_examples=50)
def test_rows_can_be_read_in_any_order(data: st.DataObject) -> None:
    documents = random_documents(20, 9)
    everything = joined(documents)
    with tempfile.TemporaryDirectory() as folder:
        stream = write(Path(folder), [documents[:7], [], documents[7:8], documents[8:]])
        wanted = data.draw(st.lists(st.integers(0, stream.rows(4) - 1), min_size=1))
        taken = stream.take(wanted, 4)
        for row, got, length in zip(wanted, taken["tokens"].tolist(), taken["lengths"].tolist(), strict=True):
            assert got[:length] == everything[4 * row : 4 * row + 4]
        start = data.draw(st.integers(0, len(everything) - 1))
        stop = data.draw(st.integers(start + 1, len(everything)))
        assert stream.slice(start, stop).tolist() == everything[start:stop]


@settings(max_examples=100)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=30).filter(any),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    sequence_length=st.integers(1, 20),
)
def test_starts_and_marks_of_rows_match_the_documents(
    lengths: list[int], cuts: list[int], sequence_length: int
) -> None:
    draw = np.random.default_rng(sum(lengths))
    documents = [[1] * length for length in lengths]
    marks = [draw.random(length) < 0.5 for length in lengths]
    places = [0, *sorted(min(cut, len(documents)) for cut in cuts), len(documents)]
    starts = [place == 0 for length in lengths for place in range(length)]
    marked = np.concatenate(marks).tolist()
    with tempfile.TemporaryDirectory() as folder:
        for number, (first, last) in enumerate(pairwise(places)):
            path = Path(folder) / f"train-{number:06d}-000000.arrow"
            write_shard(path, documents[first:last], 1000, {"marked": marks[first:last]})
        stream = TokenStream.open(Path(folder), SHARD_GLOB)
        taken = stream.take(range(stream.rows(sequence_length)), sequence_length, ["marked"])
        read = [stream.document(number, "marked").tolist() for number in range(len(marks))]
    assert read == [mark.tolist() for mark in marks]
    assert taken["starts"].dtype == taken["marked"].dtype == bool
    missing = taken["starts"].size - len(starts)
    starts = [start or place % sequence_length == 0 for place, start in enumerate(starts)]
    assert taken["starts"].ravel().tolist() == starts + [False] * missing
    assert taken["marked"].ravel().tolist() == marked + [False] * missing


def test_a_row_can_span_several_shards(tmp_path: Path) -> None:
    stream = write(tmp_path, [[[1, 2], [3]], [[4]], [], [[5]], [[6, 7, 8, 9]]])
    taken = stream.take([0, 1], 6)
    assert taken["tokens"].tolist() == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0]]
    assert taken["lengths"].tolist() == [6, 3]
    assert taken["starts"].tolist() == [[True, False, True, True, True, True], [True, *[False] * 5]]
    assert stream.rows(6) == 2
    assert stream.rows(9) == 1
    assert stream.rows(3) == 3


@pytest.mark.parametrize(
    ("vocabulary_size", "kind"), [(154, np.uint16), (65_535, np.uint16), (65_536, np.uint16), (65_537, np.uint32)]
)
def test_ids_are_stored_in_the_smallest_sufficient_type(tmp_path: Path, vocabulary_size: int, kind: type) -> None:
    documents = [[0, 1, vocabulary_size - 1], [vocabulary_size - 2]]
    stream = write(tmp_path, [documents], vocabulary_size)
    assert [stream.document(number).tolist() for number in (0, 1)] == documents
    tokens = stream.take([0], 5)["tokens"]
    assert tokens.dtype == kind
    assert tokens.tolist() == [[*documents[0], *documents[1], 0]]


def test_an_id_too_large_is_refused_and_not_wrapped(tmp_path: Path) -> None:
    with pytest.raises((pa.ArrowInvalid, OverflowError)):
        write(tmp_path, [[[65_536]]], vocabulary_size=65_536)
    assert not list(tmp_path.glob(SHARD_GLOB))  # no partly written file is left that could be read as a shard


def test_partly_written_shards_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, [[[1, 2, 3]]])
    (tmp_path / ".train-000001-000000.arrow.4711").write_bytes(b"half")
    (tmp_path / "heldout-000000-000000.arrow").write_bytes(b"another kind")
    assert TokenStream.open(tmp_path, SHARD_GLOB).tokens == 3
    assert sorted(path.name for path in tmp_path.iterdir() if "train-000000" in path.name) == [
        "train-000000-000000.arrow"
    ]


def test_shards_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for item, chunk in ((10, 0), (2, 11), (2, 2), (0, 0)):
        write_shard(tmp_path / f"train-{item:06d}-{chunk:06d}.arrow", [[item * 100 + chunk]], 2000)
    assert TokenStream.open(tmp_path, SHARD_GLOB).slice(0, 4).tolist() == [0, 202, 211, 1000]


def test_a_folder_without_shards_is_an_empty_stream(tmp_path: Path) -> None:
    stream = TokenStream.open(tmp_path, SHARD_GLOB)
    assert (stream.tokens, stream.documents, stream.rows(8)) == (0, 0, 0)


def finish(folder: Path, **metrics: int) -> None:
    """Writes the record of stage `prepare` into a folder of shards, with these metrics."""
    Record("prepare", "a", "", 1, {}, {}, metrics, {}, {}, {}, {}, "", folder).save()


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_finished_corpus_with_a_missing_shard_is_refused(tmp_path: Path, gone: int) -> None:
    """A missing shard is detected by the number of tokens in the stage's record.

    A gap in the numbering of the files is not enough, because a chunk has no training shard if all of its documents are
    held out.
    """
    write(tmp_path, [[[1, 2]], [[3]], [[4, 5, 6]]])
    finish(tmp_path, train_tokens=6, heldout_tokens=0)
    assert TokenStream.open(tmp_path, SHARD_GLOB).tokens == 6
    sorted(tmp_path.glob(SHARD_GLOB))[gone].unlink()
    with pytest.raises(
        DataError, match=rf"the 2 files {tmp_path}/train-\S+ hold . tokens, but 6 were written"
    ) as caught:
        TokenStream.open(tmp_path, SHARD_GLOB)
    assert str(tmp_path) in caught.value.fix


def test_a_finished_corpus_with_a_wrong_number_of_tokens_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [[[1, 2]], [[3]]])
    finish(tmp_path, train_tokens=2, heldout_tokens=7)
    for pattern in (SHARD_GLOB, HELDOUT_GLOB):
        with pytest.raises(DataError, match="were written"):
            TokenStream.open(tmp_path, pattern)


def test_shards_are_memory_mapped(tmp_path: Path) -> None:
    documents = random_documents(200, 5000)
    stream = write(tmp_path, [documents[:100], documents[100:]])
    before = pa.total_allocated_bytes()
    assert stream.tokens == sum(map(len, documents))
    assert stream.document(150).tolist() == documents[150]
    assert pa.total_allocated_bytes() - before < 100_000  # the shards have about 1 MB and stay memory-mapped


@pytest.mark.parametrize("kept", [0, 10, 0.5, -1])
def test_a_broken_shard_is_named(tmp_path: Path, kept: float) -> None:
    write(tmp_path, [random_documents(50, 50)])
    shard = next(tmp_path.glob(SHARD_GLOB))
    content = shard.read_bytes()
    shard.write_bytes(content[: int(kept * len(content)) if 0 < kept < 1 else int(kept)])
    with pytest.raises(DataError, match=re.escape(str(shard))) as caught:
        _ = TokenStream.open(tmp_path, SHARD_GLOB).tokens
    assert str(tmp_path) in caught.value.fix


def mapped(folder: Path) -> int:
    """Returns the number of files in a folder that this process has mapped into memory."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[-1] for line in lines if line.endswith(".arrow") and str(folder) in line})


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists the maps of a process")
def test_few_shards_of_a_corpus_are_mapped_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_shards, "MOST_MAPPED", 2)
    documents = random_documents(40, 9)
    stream = write(tmp_path, [documents[number : number + 2] for number in range(0, 40, 2)])
    assert stream.documents == 40
    read = [stream.document(number) for number in range(40)]
    assert mapped(tmp_path) == 2  # the arrays of the documents keep no further shards mapped
    assert [document.tolist() for document in read] == documents
    bounds = np.cumsum([0, *map(len, documents)]).tolist()
    assert [stream.documents_in(*bound) for bound in pairwise(bounds)] == [(number, number) for number in range(40)]
    taken = stream.take(range(stream.rows(7)), 7)
    assert taken["tokens"].ravel().tolist()[: stream.tokens] == joined(documents)
    assert 0 < mapped(tmp_path) <= 2
    with pytest.raises(IndexError):
        stream.document(40)
    assert pickle.loads(pickle.dumps(stream)).document(39).tolist() == documents[39]


def test_a_lack_of_memory_maps_is_not_blamed_on_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.ENOMEM, "Memory mapping file failed: Cannot allocate memory")

    write(tmp_path, [[[1]]])
    monkeypatch.setattr(token_shards, "read_batch", fail)
    with pytest.raises(DataError, match="Cannot allocate memory") as caught:
        TokenStream.open(tmp_path, SHARD_GLOB)
    assert "vm.max_map_count" in caught.value.fix
    assert "delete" not in caught.value.fix
