"""Tests difference masking: the TF-ICF weights of words, and the choice of predictions with these weights."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from adapt.config import ObjectiveConfig, ResourcesConfig
from adapt.corpus.cluster_calls import Cluster
from adapt.corpus.token_shards import write_shard
from adapt.objective.masking import ORDER, DifferenceMasking, make, uniform
from adapt.objective.objective import Batch
from adapt.objective.word_weights import Counts, WordWeights, hash_words
from adapt.stage import weigh_words
from adapt.stage.weigh_words import count_marked_words, count_shard, spelled
from adapt.support.schema import WORD_STARTS
from tests.train.toy import Tokenizer

Words = Sequence[tuple[int, ...]]
ROWS, LENGTH = 40, 24


def random_words(seed: int, count: int) -> Words:
    """Returns words of 1 to 3 tokens, some of which are frequent."""
    draw = np.random.default_rng(seed)
    known = [tuple(draw.integers(5, 60, draw.integers(1, 4)).tolist()) for _ in range(40)]
    return [known[int(draw.zipf(1.5)) % len(known)] for _ in range(count)]


def shard(path: Path, words: Words, documents: int = 7) -> Path:
    """Writes words into a shard, divided into documents. Each start of a document is also the start of a word."""
    parts = [words[number::documents] for number in range(documents)]
    tokens = [[token for word in part for token in word] for part in parts]
    marks = [[place == 0 for word in part for place in range(len(word))] for part in parts]
    write_shard(path, tokens, 61, {WORD_STARTS: marks})
    return path


def hashed(word: tuple[int, ...]) -> int:
    return int(hash_words(np.array(word), np.arange(len(word)) == 0)[0][0])


def counts(words: Words) -> Counts:
    numbers = sorted((hashed(word), count) for word, count in Counter(words).items())
    hashes, times = zip(*numbers, strict=True)
    return Counts(np.array(hashes, np.uint64), np.array(times), len(words))


def batch(seed: int = 0) -> Batch:
    """Returns rows of random words; the last rows end with padding."""
    draw = np.random.default_rng(seed)
    starts = np.tile(np.arange(LENGTH) == 0, (ROWS, 1))
    columns = {
        "tokens": draw.integers(0, 61, (ROWS, LENGTH)),
        "lengths": np.where(np.arange(ROWS) < 30, LENGTH, 9),
        "epochs": np.zeros(ROWS, np.int64),
        "rows": np.arange(ROWS) + 1000 * seed,
        "starts": starts,
        WORD_STARTS: (draw.random((ROWS, LENGTH)) < 0.6) | starts,
    }
    return Batch.of(columns)


def objective(weights: WordWeights, fraction: float = 0.3) -> DifferenceMasking:
    made = make(ObjectiveConfig(kind="difference", mask_fraction=fraction), Tokenizer(), 3)  # type: ignore[arg-type]
    assert isinstance(made, DifferenceMasking)
    made.weights = weights
    return made


def words_of(rows: Batch, row: int) -> list[tuple[int, ...]]:
    """Returns, for each token of a row's text, the word that contains it."""
    tokens, starts = rows.tokens[row].tolist(), rows.marks[WORD_STARTS][row].tolist()
    length = int(rows.lengths[row])
    words: list[list[int]] = []
    for place in range(length):
        if starts[place]:
            words.append([])
        words[-1].append(tokens[place])
    return [tuple(word) for word in words for _ in word]


@pytest.mark.parametrize("piece", [10**6, 50])
def test_words_are_counted_as_sequences_of_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """A shard that is read in pieces has the same words."""
    monkeypatch.setattr(weigh_words, "PIECE", piece)
    words = random_words(0, 500)
    found, expected = count_shard(shard(tmp_path / "train-0.arrow", words)), counts(words)
    assert found.words == 500
    assert found.hashes.tolist() == expected.hashes.tolist()
    assert found.counts.tolist() == expected.counts.tolist()
    listed = expected.hashes[::3]
    some = count_shard(tmp_path / "train-0.arrow", listed)
    assert (some.words, some.counts.tolist()) == (500, expected.counts[::3].tolist())


def test_the_order_of_tokens_and_the_division_into_words_matter() -> None:
    assert len({hashed(word) for word in [(1, 2), (2, 1), (1,), (2,), (1, 2, 0), (0,), (0, 0)]}) == 7


@pytest.mark.heavy
def test_counts_on_the_cluster_equal_those_of_all_shards(tmp_path: Path, ray_cluster: str) -> None:
    words = [random_words(seed, 200) for seed in range(3)]
    shards = [shard(tmp_path / f"train-{number}.arrow", each) for number, each in enumerate(words)]
    cluster = Cluster(ResourcesConfig(), tmp_path)
    found, expected = count_marked_words(shards, None, cluster), counts([word for each in words for word in each])
    assert (found.words, found.hashes.tolist()) == (600, expected.hashes.tolist())
    assert found.counts.tolist() == expected.counts.tolist()


def test_weights_are_tf_icf() -> None:
    domain: Words = [(1, 2)] * 50 + [(3,)] * 50 + [(4,)] * 2 + [(5,)]
    general: Words = [(3,)] * 300 + [(4,)] * 10 + [(6,)] * 690
    weights = WordWeights.of(counts(domain), counts(general))
    expected = {
        (1, 2): (1 + math.log(50)) * math.log(1001 / 1),
        (3,): (1 + math.log(50)) * math.log(1001 / 301),
        (4,): (1 + math.log(2)) * math.log(1001 / 11),
        (5,): math.log(1001),  # a word that occurs once has the weight of a word that never occurs
        (9, 9): math.log(1001),
    }
    for word, weight in expected.items():
        at = weights.at(np.array(word), np.arange(len(word)) == 0)
        assert at.tolist() == pytest.approx([weight] * len(word))


def test_weights_survive_a_file(tmp_path: Path) -> None:
    weights = WordWeights.of(counts(random_words(0, 300)), counts(random_words(1, 300)))
    weights.save(tmp_path)
    again = WordWeights.load(tmp_path)
    assert again.hashes.tolist() == weights.hashes.tolist()
    assert (again.weights.tolist(), again.unknown) == (weights.weights.tolist(), weights.unknown)


def test_the_positions_with_the_largest_keys_are_predicted() -> None:
    """Compares with keys u^(1/w) that the test computes, from random numbers u and the weights w of positions."""
    rows = batch()
    known = sorted({word for row in range(ROWS) for word in words_of(rows, row)})[::2]
    values = {word: 0.05 + 3 * (number % 7) for number, word in enumerate(known)}
    listed = sorted((hashed(word), weight) for word, weight in values.items())
    hashes, numbers = zip(*listed, strict=True)
    masking = objective(WordWeights(np.array(hashes, np.uint64), np.array(numbers), 2.5))
    found = masking.corrupt(rows).positions
    random = 1 - uniform(3, ORDER, rows.epochs, rows.rows, LENGTH).numpy()
    for row in range(ROWS):
        words, ordinary = words_of(rows, row), [token > 4 for token in rows.tokens[row].tolist()]
        keys = [
            (random[row, place] ** (1 / values.get(word, 2.5)) if ordinary[place] else -1.0)
            for place, word in enumerate(words)
        ]
        wanted = max(1, round(0.3 * sum(ordinary[: len(words)])))
        assert sorted(np.argsort(keys)[::-1][:wanted].tolist()) == found[row].nonzero().flatten().tolist()


def test_the_number_of_predictions_is_that_of_mlm_and_rows_are_independent() -> None:
    rows = batch()
    weights = WordWeights.of(counts(random_words(0, 300)), counts(random_words(1, 300)))
    whole = objective(weights).corrupt(rows).positions
    plain = make(ObjectiveConfig(mask_fraction=0.3), Tokenizer(), 3).corrupt(rows).positions  # type: ignore[arg-type]
    assert whole.sum(1).tolist() == plain.sum(1).tolist()
    assert not torch.equal(whole, plain)
    some = slice(7, 9)
    parts = {name: getattr(rows, name)[some] for name in ("tokens", "lengths", "epochs", "rows", "starts")}
    alone = Batch(**parts, marks={WORD_STARTS: rows.marks[WORD_STARTS][some]})
    assert torch.equal(objective(weights).corrupt(alone).positions, whole[some])


def test_a_single_prediction_is_chosen_in_proportion_to_the_weights() -> None:
    tokens = np.tile([10, 11, 12, 13], (20_000, 1))
    starts = np.tile(np.arange(4) == 0, (len(tokens), 1))
    columns = {"tokens": tokens, "lengths": np.full(len(tokens), 4), "epochs": np.zeros(len(tokens), np.int64)}
    rows = Batch.of({**columns, "rows": np.arange(len(tokens)), "starts": starts, WORD_STARTS: np.ones_like(starts)})
    wanted = {10: 1.0, 11: 2.0, 12: 4.0, 13: 1.0}
    listed = sorted((hashed((token,)), weight) for token, weight in wanted.items() if token != 13)
    hashes, numbers = zip(*listed, strict=True)
    masking = objective(WordWeights(np.array(hashes, np.uint64), np.array(numbers), 1.0), 0.25)
    shares = masking.corrupt(rows).positions.double().mean(0).tolist()
    assert shares == pytest.approx([1 / 8, 2 / 8, 4 / 8, 1 / 8], abs=0.015)


def test_words_are_spelled_from_the_first_shards(tmp_path: Path) -> None:
    words = random_words(0, 100)
    wanted = [words[0], words[-1]]
    shards = [shard(tmp_path / "train-0.arrow", words)]
    found = spelled(np.array([hashed(word) for word in wanted], np.uint64), shards)
    assert found == {hashed(word): list(word) for word in wanted}
