"""Compares the classifier with scikit-learn's classifier on n-gram features that the tests compute."""

from collections import Counter

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from adapt.select.choose import sampled
from adapt.select.grams import grams
from adapt.select.ngram_selections import ByClassifier, ClassifierOptions
from adapt.select.selection import draws_at
from adapt.support.errors import DataError
from tests.samples import sentences
from tests.select.pools import given, numbered, ranked

TARGET = [f"gradient layer {text}" for text in sentences(30, seed=5, shortest=4, longest=30)]
POOL = [*sentences(150, shortest=4, longest=35), *(f"gradient layer {text}" for text in sentences(20, seed=7))]


def windows(text: str) -> list[str]:
    """Splits a text into windows of about ten words."""
    words = text.rstrip(".").split()
    count = max(1, round(len(words) / 10))
    return [
        " ".join(word for place, word in enumerate(words) if place * count // len(words) == number)
        for number in range(count)
    ]


def features(texts: list[str], longest: int, names: list[tuple[str, ...]]) -> np.ndarray:
    """Returns n-gram counts [texts, n-grams], with each row scaled to length 1."""
    place = {name: number for number, name in enumerate(names)}
    rows = np.zeros((len(texts), len(names)))
    for row, text in zip(rows, texts, strict=True):
        for run, count in runs(text, longest).items():
            if run in place:
                row[place[run]] = count
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)


def runs(text: str, longest: int) -> Counter[tuple[str, ...]]:
    words = text.rstrip(".").split()
    return Counter(tuple(words[n : n + size]) for size in range(1, longest + 1) for n in range(len(words) - size + 1))


BUCKETS = 2**22 + 1
"""Number of hash buckets, so large that no two n-grams of the texts in this file share a bucket."""


def log_odds(
    positive: list[str], negative: list[str], pool: list[str], longest: int, target: int | None = None
) -> np.ndarray:
    """Returns the log odds of the pool's texts, computed with scikit-learn on exact n-grams of windows.

    The windows of a text have a total weight of 1.

    Args:
      positive: texts of the positive class, with the target's texts first.
      negative: texts of the negative class.
      pool: texts to score.
      longest: length of the longest n-grams [words].
      target: number of positive texts that belong to the target. None means all.
    """
    cut = [windows(text) for text in (*positive, *negative)]
    weights = np.concatenate([[1 / len(some)] * len(some) for some in cut])
    is_positive = np.repeat(np.arange(len(cut)) < len(positive), [len(some) for some in cut])
    names = sorted(
        {run for text in (*positive, *negative, *pool) for some in windows(text) for run in runs(some, longest)}
    )
    in_pool = {run for text in pool for run in runs(text, longest)}
    of_target = sum(len(some) for some in cut[: len(positive) if target is None else target])
    x = features([some for each in cut for some in each], longest, names)
    known = [name for name in names if name in in_pool]
    x[:of_target] = features([some for each in cut for some in each][:of_target], longest, known) @ np.array(
        [[name == other for other in names] for name in known]
    )
    for side in (is_positive, ~is_positive):
        weights[side] *= len(cut) / 2 / weights[side].sum()
    model = LogisticRegression(C=10.0, max_iter=5000, tol=1e-8)
    model.fit(x, is_positive, weights)
    return np.array([model.decision_function(features(windows(text), longest, names)).mean() for text in pool])


@pytest.fixture
def to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains until convergence. By default, training ends when log odds are accurate to a few thousandths."""
    monkeypatch.setattr("adapt.select.gram_regression.TOLERANCE", 1e-8)
    monkeypatch.setattr("adapt.select.gram_regression.MOST_STEPS", 5000)


def test_no_two_runs_share_a_bucket() -> None:
    names = {run for text in [*TARGET, *POOL] for run in runs(text, 2)}
    assert len(np.unique(grams([*TARGET, *POOL], 2, BUCKETS).buckets)) == len(names)


@pytest.mark.parametrize("longest", [1, 2])
@pytest.mark.parametrize("at_once", [10**9, 13])
def test_the_ranking_is_that_of_scikit_learn_on_the_same_features(longest: int, at_once: int, to_the_end: None) -> None:
    expected = log_odds(TARGET, POOL, POOL, longest)
    selection = ByClassifier(ClassifierOptions(ngram=longest, buckets=BUCKETS, sample=1000), 0)
    found = ranked(selection, numbered(POOL, at_once=at_once), TARGET)
    np.testing.assert_allclose([score for _, score in sorted(found)], expected, atol=1e-4)
    assert [id for id, _ in found] == np.argsort(-expected, kind="stable").tolist()


def test_default_training_is_accurate_to_a_hundredth() -> None:
    expected = log_odds(TARGET, POOL, POOL, 2)
    found = ranked(ByClassifier(ClassifierOptions(buckets=BUCKETS, sample=1000), 0), numbered(POOL), TARGET)
    np.testing.assert_allclose([score for _, score in sorted(found)], expected, atol=0.01)
    assert [id for id, _ in found[:20]] == np.argsort(-expected)[:20].tolist()


def test_negative_texts_are_a_random_sample_of_the_pool() -> None:
    texts = [str(number) for number in range(1000)]
    some = sampled(numbered(texts, 2**33), 100, 0, 2)
    drawn = draws_at([2**33 + number for number in range(1000)], 0, 2)
    assert some == [texts[place] for place in sorted(np.argsort(-drawn)[:100])]
    assert some == sampled(numbered(texts, 2**33, at_once=17), 100, 0, 2)
    assert some != sampled(numbered(texts, 2**33), 100, 1, 2)
    assert sampled(numbered(texts[:5]), 100, 0, 2) == texts[:5]


def test_a_further_round_finds_documents_that_share_words_with_the_best(to_the_end: None) -> None:
    """The target contains `gradient` but not `vector`.

    Documents with both words are recalled first, so the second round also finds documents that only contain `vector`.
    """
    others = [text for text in sentences(300, seed=3) if "vector" not in text and "gradient" not in text]
    both = [f"gradient vector {text}" for text in others[:40]]
    pool = [*others[40:140], *both, *(f"vector {text}" for text in others[140:150])]
    target = [f"gradient {text}" for text in others[:40]]
    hidden = set(range(len(pool) - 10, len(pool)))

    def places_of_hidden(scores: np.ndarray) -> float:
        return float(np.mean([place for place, id in enumerate(np.argsort(-scores, kind="stable")) if id in hidden]))

    first = log_odds(target, pool, pool, 1)
    recalled = [pool[place] for place in np.argsort(-first, kind="stable")[:40]]
    second = log_odds([*target, *recalled], [text for text in pool if text not in recalled], pool, 1, len(target))
    for rounds, expected in ((1, first), (2, second)):
        options = ClassifierOptions(ngram=1, buckets=BUCKETS, rounds=rounds)
        found = sorted(ranked(ByClassifier(options, 0), numbered(pool), target))
        np.testing.assert_allclose([score for _, score in found], expected, atol=1e-4)
    assert all(text.startswith("vector") for text in pool[140:])
    # mean rank (from 0 to 149) of the documents that only contain `vector`
    assert places_of_hidden(first) > 140
    assert places_of_hidden(second) < 120


def test_rounds_read_the_pool_once_each_and_once_for_the_sample() -> None:
    for rounds in (1, 3):
        pool = numbered(POOL)
        ranked(ByClassifier(ClassifierOptions(rounds=rounds, ngram=1), 0), pool, TARGET)
        assert pool.passes == 1 + rounds  # one pass per round, and one pass for the scores


@pytest.mark.parametrize(("pool", "target", "which"), [(POOL, ["a"], "target"), (["a"], TARGET, "pool")])
def test_too_few_texts_are_refused(pool: list[str], target: list[str], which: str) -> None:
    with pytest.raises(DataError, match=f"the {which} of the selection has 1 texts, but at least 2"):
        ByClassifier(ClassifierOptions(), 0).learn(given(numbered(pool), target))


def test_grams_that_never_occur_in_the_pool_change_nothing() -> None:
    """If the classifier used n-grams that the pool lacks, it would know the target by its markup, not its words."""
    # the markup follows texts of nine words, so it splits no n-gram that occurs in the pool
    target = [text for text in TARGET if len(text.split()) == 9]
    marked = [f"{text.rstrip('.')} ENTITYEND" for text in target]
    plain, with_marks = (
        dict(ranked(ByClassifier(ClassifierOptions(), 0), numbered(POOL), each)) for each in (target, marked)
    )
    np.testing.assert_allclose([with_marks[id] for id in plain], list(plain.values()), atol=1e-9)
