"""The coherence of topics, against counting by hand."""

from itertools import combinations
from math import log

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from adapt.embed.npmi import mean_npmi


def by_hand(topics: np.ndarray, counts: np.ndarray, most: int) -> float:
    documents = [{word for word, count in enumerate(row) if count} for row in counts]

    def share(*words: int) -> float:
        return sum(set(words) <= document for document in documents) / len(documents)

    def npmi(one: int, other: int) -> float:
        together = share(one, other)
        return log(together / (share(one) * share(other))) / -log(together) if 0 < together < 1 else 0.0

    first = [sorted(range(len(topic)), key=lambda word, topic=topic: -topic[word])[:most] for topic in topics]
    return float(np.mean([npmi(*pair) for words in first for pair in combinations(words, 2)]))


@pytest.mark.parametrize("seed", range(4))
def test_it_is_that_of_all_pairs_counted_by_hand(seed: int) -> None:
    draw = np.random.default_rng(seed)
    counts = draw.poisson(draw.uniform(0.02, 1.5, 12), (40, 12)).astype(np.float32)
    counts[:, 0] = 1  # in every document
    topics = draw.normal(size=(3, 12))
    assert mean_npmi(topics, csr_matrix(counts), 5) == pytest.approx(by_hand(topics, counts, 5), abs=1e-12)


def test_words_that_only_come_together_have_one() -> None:
    counts = csr_matrix(np.array([[1, 2, 0, 0], [3, 1, 0, 0], [0, 0, 1, 1], [0, 0, 5, 1]], np.float32))
    assert mean_npmi(np.array([[2.0, 1.0, 0, 0], [0, 0, 2.0, 1.0]]), counts, 2) == pytest.approx(1)
    assert mean_npmi(np.array([[2.0, 0, 1.0, 0]]), counts, 2) == 0
