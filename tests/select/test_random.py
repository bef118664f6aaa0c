"""The random selection."""

import numpy as np
from scipy.stats import chisquare

from adapt.select.random import BLOCK, choose


def test_it_takes_so_many_different_texts_in_order() -> None:
    texts = [f"text {number}" for number in range(BLOCK + 100)]
    chosen = choose(texts, 50, 3)
    places = [place for place, _, _ in chosen]
    assert len(set(places)) == 50
    assert places == sorted(places)
    assert all(texts[place] == text for place, text, _ in chosen)


def test_the_seed_decides_and_a_larger_sample_holds_a_smaller_one() -> None:
    texts = [str(number) for number in range(1000)]
    assert choose(texts, 30, 1) == choose(iter(texts), 30, 1)
    assert choose(texts, 30, 1) != choose(texts, 30, 2)
    assert {text for _, text, _ in choose(texts, 10, 1)} < {text for _, text, _ in choose(texts, 30, 1)}


def test_a_pool_that_is_too_small_is_taken_whole() -> None:
    assert [text for _, text, _ in choose(["a", "b"], 5, 0)] == ["a", "b"]


def test_every_text_has_the_same_chance() -> None:
    counts = np.zeros(40)
    for seed in range(1000):
        for place, _, _ in choose(map(str, range(40)), 8, seed):
            counts[place] += 1
    assert chisquare(counts).pvalue > 0.001
