"""Tests comparisons of models on standard tasks: paired by item, over seeds, and without leaked items.

An item is leaked if its text occurs in the training shards.
"""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr, ttest_rel

from adapt.corpus.decontamination import build_index
from adapt.corpus.token_shards import write_shard
from adapt.evaluate.benchmark.benchmark_changes import ShardSearch, compare_tasks, items_index
from adapt.evaluate.benchmark.item_scores import ItemMeasure, TaskItems
from adapt.evaluate.compared_models import BenchmarksCompared, TaskChange
from adapt.evaluate.measurements import Estimate
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.runner.record import Record
from adapt.support.errors import DataError
from tests.evaluate.benchmark.tiny_tasks import items_with, mean_of
from tests.samples import sentences

RNG = np.random.default_rng(1)
SAMPLES = 2000


def ends(of: Estimate) -> tuple[float, float]:
    assert of.low is not None
    assert of.high is not None
    return of.low, of.high


def compared(before: ItemMeasure, *after: ItemMeasure, leaked: list[int] | None = None) -> TaskChange:
    count = len(before.columns[0]) if before.columns else 50
    mask = None if leaked is None else np.isin(np.arange(count), leaked)
    models = {"before": [{"t": items_with(before, count)}], "after": [{"t": items_with(of, count)} for of in after]}
    (row,) = compare_tasks(models, {"t": mask}, SAMPLES)
    return row


def test_the_interval_of_a_change_is_paired_by_item() -> None:
    old = RNG.random(400)
    new = old + RNG.normal(0.02, 0.05, 400)  # this noise is far smaller than the differences between items
    row = compared(mean_of(old), mean_of(new))
    change, exact = row.changes["after"], ttest_rel(new, old).confidence_interval()
    assert change.value == pytest.approx(new.mean() - old.mean())
    assert ends(change) == pytest.approx((exact.low, exact.high), abs=5e-4)
    low, high = ends(row.scores["before"])
    assert high - low > 0.05
    assert row.leaked is None


def test_leaked_items_are_left_out_of_the_second_change_and_of_the_verdict() -> None:
    old = (RNG.random(60) < 0.5).astype(float)
    new = old.copy()
    new[:20] = 1  # the model has seen the first 20 items
    row = compared(mean_of(old), mean_of(new), leaked=[*range(20)])
    assert row.leaked == 20
    assert ends(row.changes["after"])[0] > 0
    assert row.clean_changes["after"].value == 0
    assert row.clean_scores["before"].value == pytest.approx(old[20:].mean())
    result = BenchmarksCompared(["before", "after"], {"before": 1, "after": 1}, [row], 13, 0.5)
    assert result.effects("after") == {"t": "equal"}
    compared_stage = Record("benchmarks", "x", "k", 1, {}, {}, {}, {}, {}, {}, {}, "2026-11-26", Path())
    assert "t 20 of 60" in str(result.blocks(compared_stage)[0])
    everything = compared(mean_of(old), mean_of(new), leaked=[*range(60)])
    assert (everything.leaked, everything.clean_changes) == (60, {})
    assert BenchmarksCompared(["before", "after"], {}, [everything], 13, 0.5).effects("after") == {}


def test_seeds_widen_the_interval() -> None:
    old = (RNG.random(300) < 0.5).astype(float)

    def luck(of: float) -> ItemMeasure:
        return mean_of(np.where(RNG.random(300) < of, 1 - old, old))

    steady, varied = [luck(0.1) for _ in range(3)], [luck(of) for of in (0.02, 0.1, 0.4)]
    widths = []
    for seeds in (steady, varied):
        change = compared(mean_of(old), *seeds).changes["after"]
        assert change.value == pytest.approx(np.mean([of.score for of in seeds]) - old.mean())
        low, high = ends(change)
        assert low < change.value < high
        widths.append(high - low)
    assert widths[1] > widths[0]


def test_rank_correlations_of_one_and_of_several_seeds_have_intervals() -> None:
    truth = RNG.normal(size=80)

    def vectors(noise: float) -> ItemMeasure:
        values = truth + RNG.normal(0, noise, 80)
        score = float(np.corrcoef(truth.argsort().argsort(), values.argsort().argsort())[0, 1])
        measure = ItemMeasure.of(score, True, "spearman", [*zip(truth, values, strict=True)])
        assert measure.statistic
        return measure

    one = compared(vectors(5), vectors(0.1)).changes["after"]
    assert 0 < ends(one)[0] < one.value < ends(one)[1]
    several = compared(vectors(5), vectors(0.1), vectors(0.3), vectors(0.2)).changes["after"]
    assert 0 < ends(several)[0] < several.value < ends(several)[1]


def test_scores_of_a_whole_corpus_have_no_interval_and_no_effect() -> None:
    row = compared(ItemMeasure(10.0, True), ItemMeasure(14.0, True), leaked=[])
    assert (row.changes["after"].value, row.changes["after"].low) == (4.0, None)
    assert BenchmarksCompared(["before", "after"], {}, [row], 13, 0.5).effects("after") == {"t": "unknown"}


def test_a_seed_without_values_per_item_leaves_the_change_without_interval() -> None:
    """MTEB's rank correlation of a model with equal vectors for all texts is NaN."""
    pairs = [(float(n), RNG.random()) for n in range(50)]
    score = float(spearmanr(*zip(*pairs, strict=True)).statistic)
    usual, equal = ItemMeasure.of(score, True, "spearman", pairs), ItemMeasure(float("nan"), True)
    for before, *after in ((usual, usual, equal), (usual, equal, usual)):
        change = compared(before, *after, leaked=[0, 1]).changes["after"]
        assert np.isnan(change.value)
        assert (change.low, change.high) == (None, None)
    steady = compared(mean_of([1, 0] * 25), mean_of([1, 0] * 25), ItemMeasure(0.75, True), leaked=[])
    assert steady.changes["after"] == Estimate(0.125)


def test_models_with_other_items_are_not_compared() -> None:
    measure = mean_of([1, 0, 1])
    models = {"a": [{"t": items_with(measure, 3)}], "b": [{"t": items_with(measure, 2)}]}
    with pytest.raises(DataError, match="items of t have changed"):
        compare_tasks(models, {}, SAMPLES)


def test_items_are_found_in_the_tokens_of_a_training(tiny_bert: Path, tmp_path: Path) -> None:
    texts = sentences(40, seed=8, shortest=20, longest=30)
    documents = [*texts[:10], f"{texts[10]} {texts[11]} {texts[12]}", "a short text of model and loss"]
    tokenizer = load_tokenizer(tiny_bert)
    shard = tmp_path / "train-00000.arrow"
    write_shard(shard, [tokenizer(text)["input_ids"] for text in documents], len(tokenizer))
    half = texts[13].split()
    items = [
        [texts[3].upper()],  # the tokenizer converts text to lower case
        [texts[20]],
        ["unknown", texts[11]],  # the second text is a part of a document; one found text per item suffices
        # a text that quotes a few words of a document does not count as a copy
        [" ".join(texts[4].split()[:6] + half)],
        # a short text is only found in a document that consists of exactly these words
        ["A short text of model, and loss"],
        ["text of model"],
    ]
    tasks = {
        "plain": TaskItems("harness", 2, {"acc": mean_of([0, 1])}, ["0", "1"], items[:2]),
        "unknown": TaskItems("mteb", 3, {"acc": mean_of([0, 1, 1])}, ["0", "1", "2"], None),
        "rest": TaskItems("mteb", 4, {"acc": mean_of([0, 1, 1, 0])}, ["0", "1", "2", "3"], items[2:]),
    }
    pretrained = Pretrained(tiny_bert, tiny_bert)
    found = np.concatenate([*ShardSearch(items_index(tasks, pretrained, 13, 0.5), pretrained)(shard)])
    assert found.tolist() == [0, 5, 7]  # indices over the items of all tasks; items 2 to 4 have no texts


def test_contained_texts_are_those_for_which_documents_are_dropped() -> None:
    texts = sentences(30, seed=9, shortest=15, longest=25)
    index = build_index([(f"set {n}", [text]) for n, text in enumerate(texts)], 13, 0.5)
    documents = [f"{texts[2]} {texts[5]}", texts[7], "nothing of it"]
    dropped = index.many(documents)
    assert dropped[1:] == ["in evaluation set set 7", None]
    assert index.contained(documents).tolist() == [2, 5, 7]
    assert index.contained([]).tolist() == index.contained(["nothing"]).tolist() == []
