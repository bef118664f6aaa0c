"""Tests the tables of the vocabulary study on synthetic records, and the training runs in its chain file."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.show.blocks import NONE, Cell
from adapt.show.report.study import Entry, Study
from benchmarks.vocabulary_study import losses, saved, scores, shares
from tests.show.report.fake_studies import Fake, loss_change
from tests.show.report.fake_studies import finished as finished_stage

FILE = str(Path(__file__).parents[1] / "benchmarks" / "vocabulary_study.yaml")
GAINS = {"base": 0.0, "DAPT": 0.1, "mean-words": 0.05}
SEEDS = "01234"


@pytest.fixture
def finished(tmp_path: Path) -> Study:
    """Returns a study: in one domain, new words alone give half of DAPT's gain. In the other domain, nothing helps."""
    fake, rng, entries = Fake(tmp_path), np.random.default_rng(0), []

    def add(job: str, stage: str, values: dict[str, str], metrics: dict[str, object]) -> None:
        record = fake.record(stage, "-".join(values.values()), metrics=metrics)
        entries.append(Entry(job, job, values, finished_stage(record)))

    for budget, loss in (("half", 0.8), ("whole", 0.7)):
        change = partial(loss_change, before=4.0, after=3.0, bits_per_byte_before=1.0)
        losses = {
            "domain": change("domain", bits_per_byte_after=loss),
            "general": change("general", bits_per_byte_after=0.9),
        }
        figures = {"losses": losses, "tokens": 1000, "parameters": 4_400_000}
        add("dapt", "export", {"way": "plain", "domain": "biomed", "budget": budget}, figures)
    figures = {"words": 1000, "fertility_before": 1.5, "fertility_after": 1.2, "length_saved": 0.2}
    add("extend", "extend", {"init": "mean", "domain": "biomed"}, figures)
    for recipe, gain in GAINS.items():
        for domain, effect in (("biomed", 1.0), ("cs", 0.0)):
            for seed in SEEDS:
                score = 0.5 + effect * gain + rng.normal(0, 0.001)
                add("finetune", "finetune", {"recipe": recipe, "domain": domain, "seed": seed}, {"score": score})
    return Study("made up", "base", entries)


def test_losses_have_a_column_for_each_budget(finished: Study) -> None:
    table = losses(finished)
    assert table
    assert table.header == ["domain", "way", "parameters", "before", "half", "whole"]
    (row,) = table.rows
    assert row[:4] == ["biomed", "plain", "4,400,000", "1.0000"]
    assert row[5] == Cell("0.7000", "1,000; 0.9000")


def test_the_saving_in_tokens_is_shown(finished: Study) -> None:
    table = saved(finished)
    assert table
    assert table.rows == [["biomed", "1,000", "1.500", "1.200", "20.0%"]]


def test_the_share_of_the_gain_is_shown_if_there_is_a_gain(finished: Study) -> None:
    table = shares(scores(finished))
    assert table
    ((name, biomed, cs),) = table.rows
    assert name == "mean-words"
    assert isinstance(biomed, Cell)
    assert 45 < float(biomed.text.rstrip("%")) < 55
    assert cs == Cell(NONE)


def test_all_ways_train_with_equal_compute_and_equal_tokens() -> None:
    nodes = [node for node in expand_chain(read_chain(FILE), {"domain": ["biomed"]}) if node.job.name == "dapt"]
    limits = {(node.config.training.max_flops, node.config.training.max_tokens) for node in nodes}
    assert limits == {(1e12, None), (2e12, None), (4e12, None), (None, 600_000)}
    assert len(nodes) == 8 * len(limits)
    assert {node.start for node in nodes if node.values["way"] == "scratch"} == {"scratch[biomed]"}
    assert {node.config.objective.kind for node in nodes} == {"whole_word"}
