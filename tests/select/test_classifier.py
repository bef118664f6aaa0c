"""The classifier against scikit-learn's own on features that are made here."""

from collections import Counter

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from adapt.errors import DataError
from adapt.select.classifier import ByClassifier, ClassifierOptions
from adapt.select.random import sampled
from tests.samples import sentences
from tests.select.pools import given, numbered, ranked

TARGET = [f"gradient layer {text}" for text in sentences(30, seed=5, shortest=4, longest=9)]
POOL = [*sentences(150, shortest=4, longest=12), *(f"gradient layer {text}" for text in sentences(20, seed=7))]


def features(texts: list[str], longest: int, names: list[tuple[str, ...]]) -> np.ndarray:
    """Counts of runs of words by name, each row of length 1."""
    place = {name: number for number, name in enumerate(names)}
    rows = np.zeros((len(texts), len(names)))
    for row, text in zip(rows, texts, strict=True):
        for run, count in runs(text, longest).items():
            if run in place:
                row[place[run]] = count
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def runs(text: str, longest: int) -> Counter[tuple[str, ...]]:
    words = text.rstrip(".").split()
    return Counter(tuple(words[n : n + size]) for size in range(1, longest + 1) for n in range(len(words) - size + 1))


@pytest.mark.parametrize("longest", [1, 2])
def test_the_ranking_is_that_of_scikit_learn_on_the_same_features(longest: int) -> None:
    names = sorted({run for text in [*TARGET, *POOL] for run in runs(text, longest)})
    x = features([*TARGET, *POOL], longest, names)
    y = np.arange(len(x)) < len(TARGET)
    model = LogisticRegression(C=10.0, class_weight="balanced", max_iter=5000, tol=1e-8).fit(x, y)
    expected = model.decision_function(x[len(TARGET) :])
    selection = ByClassifier(ClassifierOptions(ngram=longest, buckets=2**18, sample=1000), 0)
    found = ranked(selection, numbered(POOL), TARGET)
    scores = np.array([score for _, score in sorted(found)])
    if longest == 1:
        assert scores == pytest.approx(expected, abs=0.01)
        assert [place for place, _ in found[:20]] == np.argsort(-expected)[:20].tolist()
    else:  # of so many runs a few share a bucket
        assert np.corrcoef(scores, expected)[0, 1] > 0.999
        assert {place for place, _ in found[:20]} == set(np.argsort(-expected)[:20].tolist())


def test_negative_texts_are_a_random_sample_of_the_pool() -> None:
    texts = [str(number) for number in range(1000)]
    some = sampled(numbered(texts), 100, 0, 2)
    assert len(set(some)) == 100
    assert some == sorted(some, key=int)
    assert 350 < np.mean([int(text) for text in some]) < 650
    assert some == sampled(numbered(texts), 100, 0, 2)
    assert some != sampled(numbered(texts), 100, 1, 2)
    assert sampled(numbered(texts[:5]), 100, 0, 2) == texts[:5]


def test_a_further_round_finds_what_only_shares_words_with_the_best() -> None:
    """Like the target is `gradient`; beside it stands `vector`, which the target lacks."""
    others = [text for text in sentences(200, seed=3) if "vector" not in text and "gradient" not in text]
    both = [f"gradient vector {text}" for text in others[:40]]
    pool = [*others[40:140], *both, *(f"vector {text}" for text in others[140:150])]
    target = [f"gradient {text}" for text in others[:40]]
    hidden = set(range(len(pool) - 10, len(pool)))

    def rank_of_hidden(rounds: int) -> float:
        options = ClassifierOptions(ngram=1, rounds=rounds, recalled=1.0)
        found = [place for place, _ in ranked(ByClassifier(options, 0), numbered(pool), target)]
        return float(np.mean([found.index(place) for place in hidden]))

    assert rank_of_hidden(2) < rank_of_hidden(1) - 5


def test_rounds_read_the_pool_once_each_and_once_for_the_sample() -> None:
    for rounds in (1, 3):
        pool = numbered(POOL)
        ranked(ByClassifier(ClassifierOptions(rounds=rounds, ngram=1), 0), pool, TARGET)
        assert pool.passes == 1 + rounds  # the last is that of the scores


@pytest.mark.parametrize(("pool", "target", "which"), [(POOL, ["a"], "target"), (["a"], TARGET, "pool")])
def test_too_few_texts_are_refused(pool: list[str], target: list[str], which: str) -> None:
    with pytest.raises(DataError, match=f"the {which} of the selection has 1 texts, too few"):
        ByClassifier(ClassifierOptions(), 0).learn(given(numbered(pool), target))
