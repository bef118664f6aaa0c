"""Tests of the metrics of a selection, and of the map of texts."""

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics.pairwise import cosine_distances

from adapt.config import Config, EvaluationConfig
from adapt.evaluate.losses import loss_on
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.select import document_losses
from adapt.select.document_losses import sample_losses
from adapt.select.grams import gram_counts
from adapt.select.selection_metrics import (
    BUCKETS,
    MAPPED,
    SAMPLE,
    distinct_shares,
    examples,
    in_random_order,
    kl_divergence,
    map_places,
    mean_distance,
    separability,
    word_vectors,
)
from tests.samples import sentences

TARGET = [f"gradient layer {text}" for text in sentences(60, seed=1, shortest=4, longest=9)]
LIKE = [f"gradient layer {text}" for text in sentences(60, seed=2, shortest=4, longest=9)]
OTHER = sentences(60, seed=3, shortest=6, longest=11)


def test_kl_is_that_of_the_distributions_of_grams() -> None:
    p, q = gram_counts(TARGET, 2, BUCKETS), gram_counts(OTHER, 2, BUCKETS) + 1
    assert kl_divergence(TARGET, OTHER) == pytest.approx(entropy(p, q))
    assert kl_divergence(TARGET, LIKE) < kl_divergence(TARGET, OTHER)
    assert 0 <= kl_divergence(TARGET, TARGET * 400) < 0.05


def test_the_auc_is_low_for_similar_texts_and_high_for_others() -> None:
    like, other = separability(TARGET, LIKE, 0), separability(TARGET, OTHER, 0)
    assert like is not None
    assert other is not None
    assert abs(like - 0.5) < 0.2
    assert other > 0.95
    assert separability(TARGET, LIKE[:7], 0) is None  # seven texts are too few to test a classifier


def test_the_classifier_is_tested_on_texts_it_was_not_trained_on() -> None:
    """Both groups of texts consist of random words, so a classifier can only memorise the texts.

    On texts it was not trained on, its AUC must be near 0.5.
    """
    rng = np.random.default_rng(0)
    sides = [[" ".join(f"w{n}" for n in rng.integers(0, 50, 12)) for _ in range(100)] for _ in range(2)]
    found = separability(*sides, 0)
    assert found is not None
    assert abs(found - 0.5) < 0.12


def test_distinct_pairs_are_counted_in_equal_amounts_of_text() -> None:
    many = ["a b c d e f g h i j"]
    few = ["x y x y x y"]  # the text has five pairs of words, two of which are distinct
    assert distinct_shares([few, many]) == [pytest.approx(2 / 5), 1.0]
    assert distinct_shares([["x y"] * 10, many]) == [pytest.approx(1 / 9), 1.0]
    assert distinct_shares([["x"], ["y"]]) == [0.0, 0.0]


def test_examples_are_the_best_and_some_of_all_with_the_text_that_is_most_like_them() -> None:
    scores = [float(-number) for number in range(60)]
    found = examples(LIKE, scores, TARGET, 20)
    assert [each.rank for each in found[:10]] == list(range(1, 11))
    assert [each.rank for each in found[10:]] == sorted({each.rank for each in found[10:]})
    assert (found[10].rank, found[-1].rank) == (11, 60)
    assert [each.score for each in found] == [scores[each.rank - 1] for each in found]
    for each in found[:3]:
        cosines = [cosine(each.text, text) for text in TARGET]
        assert each.cosine == pytest.approx(max(cosines), abs=1e-3)
        assert cosine(each.text, each.nearest) == pytest.approx(max(cosines), abs=1e-6)
    assert [each.rank for each in examples(LIKE[:3], scores, TARGET, 20)] == [1, 2, 3]


def cosine(one: str, other: str) -> float:
    counts = []
    for text in (one, other):
        words = text.rstrip(".").split()
        counts.append(Counter([*words, *itertools.pairwise(words)]))
    product = sum(count * counts[1][run] for run, count in counts[0].items())
    return product / math.prod(math.sqrt(sum(count**2 for count in each.values())) for each in counts)


def test_losses_are_measured_on_the_first_texts_up_to_a_number_of_tokens(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_losses, "MEASURED_TOKENS", 100)
    config = Config(evaluation=EvaluationConfig(sequence_length=64))
    found = sample_losses(config, Pretrained(tiny_bert, tiny_bert), {"a": TARGET, "b": OTHER[:1]})
    model, tokenizer = load_model(tiny_bert), load_tokenizer(tiny_bert)
    for name, texts in (("a", TARGET), ("b", OTHER[:1])):
        tokens: list[np.ndarray] = []
        while sum(map(len, tokens)) < 100 and len(tokens) < len(texts):
            tokens.append(np.array(tokenizer(texts[len(tokens)])["input_ids"]))
        assert found[name] == pytest.approx(loss_on(tokens, model, tokenizer, config, torch.device("cpu")))


def test_a_random_order_depends_on_the_seed_and_the_number() -> None:
    assert in_random_order(TARGET, 1) == in_random_order(TARGET, 1)
    assert sorted(in_random_order(TARGET, 1)) == sorted(TARGET)
    assert in_random_order(TARGET, 1) != in_random_order(TARGET, 2)


FIRST = [f"gradient of layer {text}" for text in sentences(40, 1)]
SECOND = [f"protein binds kinase {text}" for text in sentences(40, 2)]
SETS = {"first": FIRST, "second": SECOND}


def test_the_mean_distance_is_that_of_all_pairs() -> None:
    vectors = word_vectors(SETS, 0)["first"]
    pairs = np.triu_indices(len(vectors), 1)
    assert mean_distance(vectors) == pytest.approx(cosine_distances(vectors)[pairs].mean())
    assert mean_distance(np.repeat(vectors[:1], 5, axis=0)) == pytest.approx(0)
    assert mean_distance(np.eye(3)) == pytest.approx(1)
    assert mean_distance(vectors[:1]) is None


def test_texts_of_several_kinds_have_larger_distances_than_those_of_one() -> None:
    found = word_vectors({**SETS, "both": [*FIRST[:20], *SECOND[:20]]}, 0)
    first, second, both = (mean_distance(rows) for rows in found.values())
    assert first
    assert second
    assert both
    assert both > 1.05 * max(first, second)


def test_vectors_are_limited_in_number_normalised_and_repeatable() -> None:
    many = {"many": FIRST * (SAMPLE // len(FIRST) + 1), "few": SECOND}
    found, again = word_vectors(many, 3), word_vectors(many, 3)
    assert {name: len(rows) for name, rows in found.items()} == {"many": SAMPLE, "few": len(SECOND)}
    for name, rows in found.items():
        assert np.linalg.norm(rows, axis=1) == pytest.approx(1)
        assert (rows == again[name]).all()


def test_too_little_text_has_no_vectors_and_no_map() -> None:
    assert word_vectors({"one": ["a word"], "other": ["something else"]}, 0) == {}
    assert word_vectors({"one": FIRST[:3], "other": []}, 0) == {}
    assert map_places({}, 0) == {}


def test_texts_without_a_shared_word_get_no_vector() -> None:
    assert len(word_vectors({"first": [*FIRST, "zyx wvu"], "second": SECOND}, 0)["first"]) == len(FIRST)


def test_similar_texts_are_close_on_the_map() -> None:
    vectors = word_vectors(SETS, 0)
    places = map_places(vectors, 0)
    first, second = places["first"], places["second"]
    assert {name: rows.shape for name, rows in places.items()} == dict.fromkeys(SETS, (40, 2))
    centres = first.mean(0), second.mean(0)
    nearer = [np.linalg.norm(first - centre, axis=1) for centre in centres]
    assert (nearer[0] < nearer[1]).mean() > 0.9
    assert len(map_places({"first": np.repeat(vectors["first"], 10, axis=0)}, 0)["first"]) == MAPPED
