"""Tests that a streamed corpus gives the same batches from any first step, and each training document once."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from adapt.config import CorpusConfig, ObjectiveConfig
from adapt.corpus import streaming
from adapt.corpus import streaming as module
from adapt.corpus.corpora import PLAIN, Form
from adapt.corpus.files.manifest import build_manifest
from adapt.corpus.heldout import Measured, key_of
from adapt.corpus.streaming import ItemIndex, Online, Server, sample_heldout, serve, served
from adapt.corpus.token_shards import Columns, Cut, TokenStream, write_shard
from adapt.model.locate import Pretrained
from adapt.runner.digest import Digests
from adapt.support.errors import DataError
from adapt.support.schema import HELDOUT_GLOB
from tests.samples import is_heldout, sentences

pytestmark = pytest.mark.heavy

TEXTS = sentences(500, seed=3)
FILES = 7
CUT = Cut(sequence_length=16, global_batch_size=6, seed=1, window_tokens=400)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> CorpusConfig:
    """Writes 500 documents in 7 files of 1 to 198 documents, and returns the configuration of the corpus."""
    folder = tmp_path_factory.mktemp("texts")
    places = [0, 3, 4, 150, 151, 300, 302, 500]
    for number in range(FILES):
        part = TEXTS[places[number] : places[number + 1]]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    return CorpusConfig(paths=str(folder), heldout_fraction=0.1, streaming=True)


@pytest.fixture
def online(corpus: CorpusConfig, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Online:
    monkeypatch.setattr(module, "CHUNK_CHARACTERS", 900)
    return of(corpus, tiny_bert, tmp_path)


def of(corpus: CorpusConfig, model: Path, folder: Path, form: Form = PLAIN) -> Online:
    manifest = build_manifest(corpus, Digests(folder / "digests.json"))
    return Online.of(manifest, corpus, Pretrained(model, model), form, CUT, folder)


def plain(batch: Columns) -> dict[str, Any]:
    return {name: values.tolist() for name, values in batch.items()}


def documents(batches: list[Columns], model: Path) -> Counter[tuple[int, ...]]:
    """Joins the rows of batches to one stream, and counts each document (as a tuple of token ids) in it."""
    rows: dict[int, list[int]] = {}
    for batch in batches:
        for epoch, row, tokens, length in zip(
            *(batch[name] for name in ("epochs", "rows", "tokens", "lengths")), strict=True
        ):
            if not epoch:
                assert row not in rows
                rows[int(row)] = tokens[:length].tolist()
    assert sorted(rows) == list(range(len(rows)))
    tokens = [token for row in sorted(rows) for token in rows[row]]
    end = AutoTokenizer.from_pretrained(model).sep_token_id
    stops = [place + 1 for place, token in enumerate(tokens) if token == end]
    return Counter(tuple(tokens[a:b]) for a, b in zip([0, *stops[:-1]], stops, strict=True))


def test_every_training_document_is_streamed_once(online: Online, tiny_bert: Path) -> None:
    batches = list(online.batches(0, parallel=False))
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    wanted = [tuple(tokenizer(text)["input_ids"]) for text in TEXTS if not is_heldout(text, 0.1)]
    assert documents(batches, tiny_bert) == Counter(wanted)
    assert {len(batch["rows"]) for batch in batches} == {6}
    starts = sum(int(batch["starts"][batch["epochs"] == 0][:, 1:].sum()) for batch in batches)
    # `starts` leaves out documents that start at the first position of a row, about an eighth of the documents
    assert len(wanted) * 15 / 17 < starts + len(wanted) / 8 < len(wanted) * 1.2


@pytest.mark.parametrize("seed", range(6))
def test_a_resumed_run_gets_the_same_batches(online: Online, seed: int) -> None:
    """A run that is resumed at random steps with different numbers of ranks gets the batches of an uninterrupted run.

    Before each resume, the index is complete, shortened or lost.
    """
    whole = [plain(batch) for batch in replace(online, index=online.index.with_name("whole")).batches(0, False)]
    draw, first, lived = np.random.default_rng(seed), 0, []
    while first < len(whole):
        world = int(draw.choice([1, 2, 3, 6]))
        last = first + int(draw.integers(1, len(whole)))
        server = Server(online, first, world, parallel=False)
        for step in range(first, min(last, len(whole))):
            ranks = draw.permutation(world).tolist()
            shares = {rank: server.share(step, rank) for rank in ranks}
            assert all(share is not None for share in shares.values())
            lived.append(plain({n: np.concatenate([shares[r][n] for r in range(world)]) for n in whole[0]}))  # type: ignore[index]
        if last > len(whole):
            assert [server.share(len(whole), rank) for rank in range(world)] == [None] * world
        assert not server._held
        first = last
        fate = draw.integers(0, 4)
        if fate == 0:
            online.index.unlink(missing_ok=True)
        elif fate == 1 and online.index.exists():
            text = online.index.read_text()
            online.index.write_text(text[: int(draw.integers(0, len(text) + 1))])
    assert lived == whole


def test_a_resumed_run_reads_no_items_before_its_window(online: Online) -> None:
    whole = [plain(batch) for batch in online.batches(0, False)]
    lengths = ItemIndex.open(online.index).tokens
    assert len(lengths) == len(online.items) == FILES
    read: list[int] = []

    def noting(batch: dict[str, Any]) -> Any:
        read.append(int(batch["item"][0]))
        return online.read(batch)

    noted = replace(online, read=noting)
    for step in range(len(whole)):
        read.clear()
        assert plain(next(noted.batches(step, False))) == whole[step]
        begin = online.cut.start_of(step)
        before = sum(1 for place in range(FILES) if sum(lengths[: place + 1]) <= begin)
        assert read[0] == online.order[before]
    assert list(online.batches(len(whole), False)) == []


def test_the_order_depends_on_the_seed(online: Online) -> None:
    assert sorted(online.order) == list(range(FILES))
    others = [replace(online, cut=replace(CUT, seed=seed)).order for seed in range(8)]
    assert len({tuple(order) for order in others}) > 4


def test_batches_contain_the_marks(corpus: CorpusConfig, tiny_bert: Path, tmp_path: Path) -> None:
    online = of(corpus, tiny_bert, tmp_path, Form.of(ObjectiveConfig(kind="whole_word")))
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    batch = next(online.batches(0, False))
    for tokens, marks, length in zip(batch["tokens"], batch["word_starts"], batch["lengths"], strict=True):
        pieces = tokenizer.convert_ids_to_tokens(tokens[:length].tolist())
        assert marks[:length].tolist() == [not piece.startswith("##") for piece in pieces]


def test_a_changed_part_is_refused(online: Online) -> None:
    list(online.batches(0, False))
    lines = online.index.read_text().splitlines()
    online.index.write_text("".join(f"{line.split()[0]} {int(line.split()[1]) + 16}\n" for line in lines))
    with pytest.raises(DataError, match="the corpus has changed"):
        list(online.batches(0, False))


def test_all_ranks_receive_the_error(online: Online) -> None:
    online.index.write_text("0 1\n")  # the index says 1 token, but every item has more
    server = Server(online, 0, 2, parallel=False)
    for rank in (0, 1, 0):
        with pytest.raises(DataError, match="the corpus has changed"):
            server.share(1000, rank)


def test_too_many_unreadable_records_end_a_stream(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text("{\n" * 30 + "".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    online = of(CorpusConfig(paths=str(tmp_path / "a.jsonl"), max_bad_fraction=0.05), tiny_bert, tmp_path)
    with pytest.raises(DataError, match="30 of 530 records are unreadable: 30 malformed JSON"):
        list(online.batches(0, False))  # the share is checked at the end, because there are fewer than 1,000 records
    with pytest.raises(DataError, match="30 of 530 records are unreadable: 30 malformed JSON"):
        sample_heldout(online, tmp_path)  # before training
    monkeypatch.setattr(module, "ENOUGH_RECORDS", 100)
    with pytest.raises(DataError, match="30 of 530 records read so far are unreadable: 30 malformed JSON"):
        list(online.batches(0, False))


def test_the_user_is_told_the_number_of_unreadable_records_once(tiny_bert: Path, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(
            "{\n" * 3 + "".join(json.dumps({"text": t}) + "\n" for t in TEXTS[:200])
        )
    online = of(CorpusConfig(paths=str(tmp_path / "*.jsonl"), max_bad_fraction=0.05), tiny_bert, tmp_path)
    told: list[str] = []
    whole = list(online.batches(0, False, told.append))
    assert len(told) == 1
    assert told[0].startswith("skipped 6 of 406 records: 6 malformed JSON (first: ")
    # a run that is resumed in the second file counts the records of that file only, and does not check their share
    resumed = replace(online, read=replace(online.read, corpus=replace(online.read.corpus, max_bad_fraction=0.0)))
    list(resumed.batches(len(whole) - 1, False, told.append))
    assert told[1].startswith("skipped 3 of 203 records since training was resumed: 3 malformed JSON (first: ")


def test_index_is_read_up_to_the_first_invalid_line(tmp_path: Path) -> None:
    file = tmp_path / "new" / "items.txt"
    index = ItemIndex.open(file)
    for position, tokens in enumerate((10, 0, 5)):
        index.add(position, tokens)
    index.add(1, 0)
    assert ItemIndex.open(file).tokens == [10, 0, 5]
    assert [index.item_at(token, 3) for token in (0, 9, 10, 14, 15, 99)] == [0, 0, 2, 2, 3, 3]
    assert [index.begin(position) for position in range(4)] == [0, 10, 10, 15]
    with file.open("a") as more:
        more.write("4 7\n3 1")
    # ignores the line of item 4, because item 3 is missing, and the partial line
    assert ItemIndex.open(file).tokens == [10, 0, 5]


@pytest.mark.parametrize(
    "torn", ["2", "2 ", "2 1", "2 15 3\n", "2 x\n", "\n", "\0\0\0\0\n", "1 7\n", "5 1\n3 2\n", "\u0662 5\n", "2 -5\n"]
)
def test_an_index_with_a_partial_last_line_can_be_continued(tmp_path: Path, torn: str) -> None:
    file = tmp_path / "items.txt"
    file.write_text("0 10\n1 0\n" + torn)
    index = ItemIndex.open(file)
    assert index.tokens == [10, 0]
    index.add(2, 5)
    index.add(3, 7)
    for _ in range(2):  # opening the index a second time gives the same result
        assert ItemIndex.open(file).tokens == [10, 0, 5, 7]


def test_an_index_that_is_not_text_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "items.txt").write_bytes(b"\xff\xfe" * 9)
    assert ItemIndex.open(tmp_path / "items.txt").tokens == []


def test_opening_a_valid_index_does_not_write_it(tmp_path: Path) -> None:
    file = tmp_path / "items.txt"
    ItemIndex.open(file).add(0, 10)
    before = file.stat()
    assert ItemIndex.open(file).tokens == [10]
    assert (file.stat().st_ino, file.stat().st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


# Tests of held-out text


def heldout(folder: Path) -> Counter[tuple[int, ...]]:
    stream = TokenStream.open(folder, HELDOUT_GLOB)
    return Counter(tuple(stream.document(number).tolist()) for number in range(stream.documents))


def test_legibility_is_measured_even_if_nothing_is_held_out(online: Online, tmp_path: Path) -> None:
    found = sample_heldout(replace(online, encode=replace(online.encode, heldout_fraction=0.0)), tmp_path)
    assert found["heldout_documents"] == 0
    assert found["legibility"].words > 100


def test_the_sample_of_a_small_corpus_is_its_whole_heldout_text(
    online: Online, tiny_bert: Path, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    wanted = Counter(tuple(tokenizer(text)["input_ids"]) for text in TEXTS if is_heldout(text, 0.1))
    counts = sample_heldout(online, tmp_path)
    assert heldout(tmp_path) == wanted
    assert counts.pop("legibility").words > 0
    assert counts == {
        "heldout_documents": wanted.total(),
        "heldout_tokens": sum(map(len, wanted.elements())),
        "evaluation_texts": {},
    }


def test_documents_measured_elsewhere_are_neither_streamed_nor_sampled(
    corpus: CorpusConfig, tiny_bert: Path, tmp_path: Path
) -> None:
    with_general = of(corpus, tiny_bert, tmp_path)
    general = [text.upper() for text in TEXTS[::7]]
    write_shard(tmp_path / "heldout-000000-000000.arrow", [[1]] * len(general), 10, keys=[*map(key_of, general)])
    known = Measured.of([tmp_path])
    read = replace(with_general.read, screen=replace(with_general.read.screen, measured=lambda: known))
    with_general = replace(with_general, read=read)
    tokenizer, rest = AutoTokenizer.from_pretrained(tiny_bert), [t for n, t in enumerate(TEXTS) if n % 7]
    for side in (False, True):
        wanted = Counter(tuple(tokenizer(text)["input_ids"]) for text in rest if is_heldout(text, 0.1) is side)
        if side:
            sample_heldout(with_general, tmp_path)
            assert heldout(tmp_path) == wanted
        else:
            assert documents(list(with_general.batches(0, parallel=False)), tiny_bert) == wanted


def test_the_sample_is_bounded_and_spread_over_items(
    online: Online, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "DOCUMENTS", 12)
    for seed in (0, 1):
        again = replace(online, cut=replace(CUT, seed=seed))
        assert 6 <= sample_heldout(again, tmp_path)["heldout_documents"] <= 12
        assert len({shard.name.split("-")[1] for shard in tmp_path.glob(HELDOUT_GLOB)}) >= 3


def test_a_sample_of_sentences_takes_as_many_documents(
    corpus: CorpusConfig, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(FILES):
        records = (
            {"text": " ".join(f"{text.capitalize()}." for text in TEXTS[i : i + 5])} for i in range(number, 490, 5)
        )
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    corpus = replace(corpus, paths=str(folder), heldout_fraction=0.5)
    monkeypatch.setattr(streaming, "DOCUMENTS", 70)
    found = []
    for form in (PLAIN, Form(sentences=True)):
        place = tmp_path / str(form.sentences)
        place.mkdir()
        found.append(sample_heldout(of(corpus, tiny_bert, place, form), place)["heldout_documents"])
    assert found == [70, 350]


def test_a_corpus_without_text_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(DataError, match="empty after cleaning"):
        sample_heldout(of(CorpusConfig(paths=str(tmp_path / "a.jsonl")), tiny_bert, tmp_path), tmp_path)


# Tests on Ray


@pytest.mark.usefixtures("ray_cluster")
def test_ray_serves_the_same_batches(online: Online) -> None:
    whole = [plain(batch) for batch in replace(online, index=online.index.with_name("whole")).batches(0, False)]
    for first, last in ((0, 9), (7, 10_000)):
        server = serve(online, first, 2)
        with served(server, 0, first, last) as one, served(server, 1, first, last) as other:
            pairs = list(zip(one, other, strict=True))
        joined = [plain({name: np.concatenate([a[name], b[name]]) for name in a}) for a, b in pairs]
        assert joined == whole[first:last]


def test_a_changed_digit_ends_the_valid_part_of_an_index(tmp_path: Path) -> None:
    file = tmp_path / "items.txt"
    index = ItemIndex.open(file)
    for position, tokens in enumerate((10, 20, 30)):
        index.add(position, tokens)
    file.write_text(file.read_text().replace("1 20 ", "1 21 "))
    assert ItemIndex.open(file).tokens == [10]


def test_index_lines_without_checksum_of_earlier_versions_are_read(tmp_path: Path) -> None:
    file = tmp_path / "items.txt"
    file.write_text("0 10\n1 20\n")
    index = ItemIndex.open(file)
    assert index.tokens == [10, 20]
    index.add(2, 30)
    assert ItemIndex.open(file).tokens == [10, 20, 30]
