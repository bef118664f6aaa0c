"""Tests scores per item: their statistics against independent computations, and groups of tasks."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from adapt.evaluate.benchmark.item_scores import (
    STATISTICS,
    ItemMeasure,
    TaskItems,
    joined_items,
    read_items,
    results_of_seeds,
    told_of_task,
    write_items,
)
from adapt.support.errors import DataError, StageError
from tests.evaluate.benchmark.tiny_tasks import items_with, mean_of

RNG = np.random.default_rng(0)


def test_the_rank_correlation_is_that_of_scipy_along_any_axis() -> None:
    truth, values = RNG.integers(0, 5, (3, 40)).astype(float), RNG.normal(size=(3, 40))
    expected = [spearmanr(one, two).statistic for one, two in zip(truth, values, strict=True)]
    assert STATISTICS["spearman"](truth, values, axis=-1) == pytest.approx(expected)
    assert STATISTICS["spearman"](truth.T, values.T, axis=0) == pytest.approx(expected)
    # the correlation with a constant is undefined and counts as 0
    assert STATISTICS["spearman"](np.ones(9), RNG.normal(size=9)) == 0


def test_perplexities_follow_their_definitions() -> None:
    likelihoods, sizes = -RNG.random(20), RNG.integers(1, 9, 20).astype(float)
    total = sum(likelihoods) / sum(sizes)
    assert STATISTICS["bits_per_byte"](likelihoods, sizes) == pytest.approx(-total / math.log(2))
    assert STATISTICS["weighted_perplexity"](likelihoods, sizes) == pytest.approx(math.exp(-total))
    assert STATISTICS["perplexity"](likelihoods) == pytest.approx(math.exp(-sum(likelihoods) / 20))


@pytest.mark.parametrize(
    ("score", "statistic", "values"),
    [
        (0.5, "bleu", [1, 0]),  # BLEU is a statistic of the whole corpus, not of items
        (0.9, "mean", [1, 0]),  # the library's score 0.9 is not the mean of the items
        (0.5, "mean", [(1, 2), (0, 3)]),
        (0.5, "mean", [float("nan"), 1]),
        (0.5, "mean", ["a", "b"]),
        (0.5, "bits_per_byte", [1, 0]),
    ],
)
def test_a_score_that_is_no_statistic_of_the_values_has_none(
    score: float, statistic: str, values: list[object]
) -> None:
    measure = ItemMeasure.of(score, True, statistic, values)
    assert (measure.score, measure.statistic, measure.columns) == (score, "", [])


def test_tasks_are_read_as_they_were_written(tmp_path: Path) -> None:
    tasks = {
        "mmlu:law/1": items_with(mean_of([1, 0, 1]), 3, [["é"], ["b"], []], tokens=5),
        "b": items_with(mean_of([1]), 1),
    }
    for name, task in tasks.items():
        write_items(tmp_path, name, task)
    assert read_items(tmp_path) == tasks


def test_a_group_is_scored_over_all_its_items() -> None:
    parts = {"a": items_with(mean_of([1, 1, 1]), 3, [["x"]] * 3), "b": items_with(mean_of([0]), 1, [["y"]])}
    joined = joined_items(parts)
    assert (joined.items, joined.measures["acc"].score, len(joined.texts or ())) == (4, 0.75, 4)
    plain = {name: items_with(ItemMeasure(score, True), 2) for name, score in (("a", 0.2), ("b", 0.4))}
    assert joined_items(plain).measures["acc"].score == pytest.approx(0.3)
    other = TaskItems("harness", 1, {"f1": ItemMeasure(0.1, True)}, ["0"], None)
    with pytest.raises(StageError, match="share no metric"):
        joined_items({**parts, "c": other})


def test_sums_of_counts_give_the_same_scores_as_the_items() -> None:
    likelihoods, sizes = -RNG.random(30), RNG.integers(1, 9, 30).astype(float)
    kept = RNG.random(30) < 0.5
    for name in ("mean", "perplexity", "bits_per_byte", "weighted_perplexity"):
        columns = (likelihoods, sizes) if name in ("bits_per_byte", "weighted_perplexity") else (likelihoods,)
        measure = ItemMeasure(0, True, name, [column.tolist() for column in columns])
        expected = float(STATISTICS[name](*(column[kept] for column in columns)))
        assert results_of_seeds([measure], kept).scores == pytest.approx([expected])


def test_errors_of_libraries_name_the_task_but_a_lack_of_memory_is_reported_as_such() -> None:
    with pytest.raises(DataError, match="the task pages cannot be measured: KeyError"), told_of_task("pages"):
        raise KeyError("text")
    with pytest.raises(RuntimeError, match="CUDA out of memory"), told_of_task("pages"):
        raise RuntimeError("CUDA out of memory. Tried to allocate 20 GiB")
