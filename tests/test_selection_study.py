"""Tests the study of selections on synthetic records: paired differences, and correlations of metrics with the gain."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr, ttest_rel

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.runner import Finished
from adapt.show.report.study import Entry, Study
from adapt.stage.select_documents import Nearness
from benchmarks.selection_study import MEAN, correlation, found_in, gains, predicted, selected
from tests.runner.made import made_up
from tests.show.report.fake_studies import Fake, finished

FILE = str(Path(__file__).parents[1] / "benchmarks" / "selection_study.yaml")
KINDS = {"RAND": "random", "A": "a", "B": "b", "C": "c"}
NEARNESS = {"random": 0.0, "a": 0.1, "b": 0.2, "c": 0.3}
TASKS, SEEDS = ("one", "two"), ("0", "1", "2", "3", "4")


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Returns a study whose gain is a tenth of the KL reduction, plus noise that depends on the seed.

    The second task is hard.
    """
    fake, rng, entries = Fake(tmp_path), np.random.default_rng(1), []
    luck = {(task, seed): rng.normal(0, 0.05) for task in TASKS for seed in SEEDS}
    for (task, seed), shared in luck.items():
        for recipe, kind in KINDS.items():
            values = {"recipe": recipe, "task": task, "seed": seed}
            score = 0.5 + 0.1 * NEARNESS[kind] + 0.2 * (task == "two") + shared + rng.normal(0, 0.001)
            entries.append(Entry("finetune", "finetune", values, _made(fake, "finetune", values, {"score": score})))
            auc = 0.9 - NEARNESS[kind] + 0.1 * (task == "two")
            figures = asdict(made_up(Nearness, auc=auc, shared_words=None))
            judged = {
                "selection": figures,
                "target": figures,
                "kl_reduction": None if kind == "random" else NEARNESS[kind],
            }
            values = {"kind": kind, "task": task, "seed": seed}
            entries.append(Entry("choose", "select", values, _made(fake, "selection", values, judged)))
    return Study("made up", "RAND", entries)


def _made(fake: Fake, stage: str, values: dict[str, str], metrics: dict[str, object]) -> Finished[Any]:
    return finished(fake.record(stage, "-".join(values.values()), metrics=metrics))


def test_differences_are_paired_by_seed(study: Study) -> None:
    found = found_in(study)
    mine, other = (list(found.scores[recipe]["one"].values()) for recipe in ("C", "RAND"))
    cell = gains(found, "RAND").rows[3][2]
    interval = ttest_rel(mine, other).confidence_interval()
    assert not isinstance(cell, str)
    assert cell.text == f"{100 * np.subtract(mine, other).mean():+.1f}"
    assert cell.small.startswith(f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f}")


def test_the_mean_over_tasks_uses_the_seeds_that_all_tasks_have(study: Study) -> None:
    found = found_in(study)
    del found.scores["C"]["two"]["3"]
    of_tasks = [found.differences("C", "RAND", task) for task in TASKS]
    assert found.differences("C", "RAND", MEAN) == {
        seed: pytest.approx((of_tasks[0][seed] + of_tasks[1][seed]) / 2) for seed in ("0", "1", "2", "4")
    }


def test_a_figure_that_predicts_the_gain_is_found_although_tasks_differ(study: Study) -> None:
    table = predicted(found_in(study), "RAND", {name: kind for name, kind in KINDS.items() if name != "RAND"})
    assert table
    told = {row[0]: row[1] for row in table.rows}
    assert set(told) == {"kl reduction", "auc", "distinct"}  # Metrics that were not measured are not in the result.
    assert not isinstance(told["auc"], str)
    assert not isinstance(told["kl reduction"], str)
    assert float(told["kl reduction"].text) > 0.8
    assert float(told["auc"].text) == -float(told["kl reduction"].text)
    low, high = map(float, told["kl reduction"].small.split(" to "))
    assert 0 < low < high <= 1


@pytest.mark.heavy
def test_the_correlation_is_by_rank_and_chance_stays_within_its_interval() -> None:
    rng = np.random.default_rng(2)
    pairs = [rng.normal(size=(5, 2)) for _ in range(20)]
    rho, low, high = correlation([0] * 20, pairs)
    means = np.array([each.mean(0) for each in pairs])
    assert rho == pytest.approx(spearmanr(means[:, 0], means[:, 1]).statistic)
    assert low < 0 < high
    by_group = correlation([0] * 10 + [1] * 10, pairs)[0]
    halves = [spearmanr(means[part, 0], means[part, 1]).statistic for part in (slice(10), slice(10, 20))]
    assert by_group == pytest.approx(np.mean(halves))  # The groups have the same size, so weights do not matter.


def test_too_few_selections_have_no_correlation(study: Study) -> None:
    assert predicted(found_in(study), "RAND", {"C": "c"}) is None


def test_every_selection_has_a_line(study: Study) -> None:
    assert [row[0] for row in selected(found_in(study)).rows] == [
        f"{kind}, {task}" for kind in ["random", "a", "b", "c"] for task in TASKS
    ]


def test_the_chain_file_trains_every_recipe_on_the_same_number_of_tokens() -> None:
    nodes = expand_chain(read_chain(FILE), {"seed": ["0"], "task": ["scierc"]})
    trained = {node.config.training.max_tokens for node in nodes if node.job.name == "tapt"}
    assert len(trained) == 1
    assert {node.config.select.tokens for node in nodes if node.job.name == "select"} == {300_000}
    of_recipe = {node.values["recipe"]: node.start for node in nodes if node.job.name == "finetune"}
    assert of_recipe["DSIR-TAPT"] == "selected[dsir, scierc, 0]"
    assert {node.config.seed for node in nodes} == {0}
