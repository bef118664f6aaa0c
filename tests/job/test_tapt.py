"""Tests which fields the keys of TAPT depend on, and which texts TAPT uses or leaves out. No model is trained."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, EvaluationSet, SelectConfig, SourceConfig, TaptConfig
from adapt.job.training_jobs import POOL, SELECTION, tapt_stages
from adapt.runner import Stage
from adapt.runner.ensure import plan_stages
from adapt.stage.context import Context
from adapt.stage.export_model import Export
from adapt.stage.prepare_text import Prepare, PrepareTexts
from adapt.stage.select_documents import Select
from adapt.stage.text_sources import TaskTexts
from tests.job.worlds import SPLITS, changed, differing, task_world

TRAINED = {"text", "training", "after", "export"}
TAPT: dict[str, tuple[Any, set[str]]] = {
    "batch_examples": (8, {"training", "after", "export"}),
    "transductive": (True, TRAINED),
    "pool_paths": ("data/pool.jsonl", TRAINED),
}
SELECTED: dict[str, tuple[Any, set[str]]] = {
    "per_example": (3, TRAINED),
    "pool_paths": ("data/more.jsonl", TRAINED),
    "pool_text_field": ("body", TRAINED),
    "target_paths": ("data/more.jsonl", TRAINED),
    "kind": ("tests.select.pools:Longest", TRAINED),
    "target_text_field": ("body", set()),  # `target_text_field` has no effect without `target_paths`
    "keep": (3.0, set()),  # `keep` has no effect without a list of selections
    "measure_loss": (False, set()),  # only jobs/select.py uses `measure_loss`
    "embedder": ("static", set()),  # `embedder` has no effect if the selection reads no vectors
    "index": ("hnsw", set()),
    "min_recall": (0.5, set()),
}
"""Fields that matter if TAPT selects a part of a pool, each with a new value and the stages whose keys then change."""
DRAWN = SelectConfig(pool_paths="data/pool.jsonl", per_example=2)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return task_world(tmp_path, monkeypatch)


def built(config: Config, **changes: Any) -> Export:
    return tapt_stages(Context.of(replace(config, **changes)))


def keys(config: Config) -> dict[str, str]:
    export = built(config)
    return {"export": export.key, **{name: stage.key for name, stage in export.inputs.items()}}


def texts(stage: Stage[Any] | None) -> TaskTexts:
    assert isinstance(stage, PrepareTexts)
    assert isinstance(stage.texts, TaskTexts)
    return stage.texts


def selected(export: Export) -> Select:
    pool = export.training.corpora[SELECTION]
    assert isinstance(pool, PrepareTexts)
    assert isinstance(pool.texts, Select)
    return pool.texts


def named(splits: Any) -> list[tuple[str, str]]:
    """Returns the task and the name of each split."""
    return [(each.task.name, each.split) for each in splits]


UNSEEN = [("one", "dev"), ("one", "test")]


def test_every_field_is_classified() -> None:
    assert {field.name for field in fields(TaptConfig)} == {*TAPT, "pool_text_field"}
    # the two fields in `ways` are alternatives to `per_example`
    ways = {"documents", "tokens"}
    assert {field.name for field in fields(SelectConfig)} == {*SELECTED, *ways}


@pytest.mark.parametrize("name", TAPT)
def test_a_field_changes_these_keys(config: Config, name: str) -> None:
    value, expected = TAPT[name]
    other = replace(config, tapt=replace(config.tapt, **{name: value}))
    assert differing(keys(config), keys(other)) == expected


@pytest.mark.parametrize("name", SELECTED)
def test_a_field_of_the_selection_changes_these_keys_if_there_is_one(config: Config, name: str) -> None:
    value, expected = SELECTED[name]
    drawn = replace(config, select=DRAWN)
    assert differing(keys(drawn), keys(changed(drawn, f"select.{name}", value))) == expected


@pytest.mark.parametrize("budget", ["documents", "tokens"])
def test_the_budget_counts(config: Config, budget: str) -> None:
    few, more, other = (
        replace(config, select=SelectConfig(pool_paths="data/pool.jsonl", **given))
        for given in ({budget: 2}, {budget: 3}, {"per_example": 2})
    )
    assert differing(keys(few), keys(more)) == differing(keys(few), keys(other)) == TRAINED


def test_the_batch_size_matters_if_examples_do_not_determine_it(config: Config) -> None:
    def change(batch_examples: int | None) -> set[str]:
        given = replace(config, tapt=TaptConfig(batch_examples=batch_examples))
        other = replace(given, training=replace(given.training, global_batch_size=16))
        return differing(keys(given), keys(other))

    assert change(256) == set()
    assert change(None) == {"training", "after", "export"}


@pytest.mark.parametrize("split", SPLITS)
def test_the_content_of_the_files_counts(config: Config, split: str, tmp_path: Path) -> None:
    """Texts of dev and test are removed from the training text, so these files also affect the training."""
    before = keys(config)
    with (tmp_path / "data" / f"{split}.jsonl").open("a") as file:
        file.write('{"text": "more", "label": "b"}\n')
    measured = {"domain", "before"} if split == "dev" else set()
    assert differing(before, keys(config)) == {*TRAINED, *measured}


@pytest.mark.parametrize("transductive", [False, True])
def test_all_data_is_looked_at_before_training(config: Config, transductive: bool) -> None:
    evaluation = replace(config.evaluation, general_paths="data/more.jsonl")
    export = built(config, evaluation=evaluation, tapt=TaptConfig(transductive=transductive), select=DRAWN)
    order = [line.stage.kind for line in plan_stages(export, Context.of(config).store)]
    assert order[order.index("train") :] == ["train", "evaluate", "evaluate", "export"]


def test_a_start_model_from_another_stage_is_trained_and_measured(config: Config) -> None:
    context = Context.of(config)
    training = tapt_stages(context).training
    further = tapt_stages(context.starting_from(training).configured(replace(config, seed=1)))
    assert further.training.inputs["start.training"] is training
    assert further.training.what()["model"] is None
    assert further.before.inputs["start.training"] is training


def test_dev_and_test_text_is_left_out_by_default(config: Config) -> None:
    inductive, transductive = (texts(built(config, tapt=TaptConfig(transductive=t)).text) for t in (False, True))
    assert (named(inductive.wanted), named(inductive.unseen)) == ([("one", "train")], UNSEEN)
    assert (named(transductive.wanted), transductive.unseen) == ([("one", split) for split in SPLITS], ())


def test_several_tasks_are_sources_of_one_training(config: Config) -> None:
    more = replace(config.task, name="two", train="data/more.jsonl")
    training = built(config, tasks=[more]).training
    assert list(training.inputs) == ["corpora.one", "corpora.two"]
    assert training.what()["mixture"]["sources"] == ["one", "two"]
    for text in training.corpora.values():  # Each task's training text leaves out the dev and test texts of both tasks.
        assert {task for task, _ in named(texts(text).unseen)} == {"one", "two"}


def test_tapt_does_not_change_settings_of_the_domain(config: Config) -> None:
    sources = [SourceConfig("a", paths="data/more.jsonl", weight=1.0), SourceConfig("b", paths="x", weight=2.0)]
    for corpus in (replace(config.corpus, sources=sources), replace(config.corpus, streaming=True)):
        training = built(config, corpus=corpus).training
        assert training == built(config).training
        assert training.streamed is None
        assert not training.config.corpus.streaming


# --- pools and replay


def test_text_selected_from_a_pool_contains_no_dev_or_test_text(config: Config) -> None:
    curated = built(config, tapt=TaptConfig(pool_paths="data/pool.jsonl")).training
    assert set(curated.inputs) == {"corpora.one", f"corpora.{POOL}"}
    pool = curated.corpora[POOL]
    assert isinstance(pool, Prepare)
    drawn = built(config, select=DRAWN)
    for unseen in (pool.unseen, selected(drawn).unseen, drawn.training.corpora[SELECTION].unseen):
        assert unseen
        assert named(unseen.wanted) == UNSEEN


def test_the_selection_is_as_large_as_all_tasks_need(config: Config) -> None:
    more = replace(config.task, name="two", train="data/more.jsonl")
    target = selected(built(config, tasks=[more], select=DRAWN)).target.text
    assert isinstance(target, TaskTexts)
    assert named(target.wanted) == [("one", "train"), ("two", "train")]
    assert {split for _, split in named(target.unseen)} == {"dev", "test"}


def test_replayed_general_text_contains_no_dev_or_test_text(config: Config) -> None:
    training = built(config, mixture=replace(config.mixture, replay_paths="data/more.jsonl")).training
    assert list(training.inputs) == ["corpora.one", "replay"]
    assert isinstance(training.replay, Prepare)
    assert training.replay.unseen
    assert named(training.replay.unseen.wanted) == UNSEEN


@pytest.fixture
def everything(config: Config) -> Config:
    """Returns a configuration with a task, its pool, replayed text, and the pool's files as measured general text."""
    return replace(
        config,
        mixture=replace(config.mixture, replay_paths="data/more.jsonl"),
        tapt=TaptConfig(pool_paths="data/pool.jsonl"),
        evaluation=replace(config.evaluation, general_paths="data/pool.jsonl"),
    )


@pytest.mark.parametrize(("transductive", "left_out"), [(False, ["general", "domain"]), (True, ["general"])])
def test_all_training_text_leaves_out_measured_text(
    everything: Config, transductive: bool, left_out: list[str]
) -> None:
    export = built(everything, tapt=replace(everything.tapt, transductive=transductive))
    read: list[Any] = [*export.training.corpora.values(), export.training.replay]
    assert len(read) == 3
    assert all(text.measured == tuple(getattr(export, name) for name in left_out) for text in read)
    assert export.general
    assert export.general.what()["corpus"]["heldout_fraction"] == 0.01  # the other 99% of the pool can be trained on


def test_a_selection_leaves_out_what_is_measured(everything: Config) -> None:
    export = built(everything, tapt=TaptConfig(), select=DRAWN)
    assert selected(export).measured == (export.general,)
    text = export.training.corpora[SELECTION]
    assert isinstance(text, PrepareTexts)
    assert text.measured == (export.general, export.domain)
    assert text.heldout_fraction == everything.corpus.heldout_fraction
    assert export.general
    assert export.general.what()["corpus"]["heldout_fraction"] == 0.01  # the other 99% of the pool can be trained on


def test_evaluation_sets_are_left_out_of_all_training_text(everything: Config) -> None:
    sets = [EvaluationSet("questions", "data/more.jsonl")]
    against = replace(everything, corpus=replace(everything.corpus, decontaminate=sets))
    for changes in ({}, {"tapt": TaptConfig(), "select": DRAWN}):
        export = built(against, **changes)
        read: list[Any] = [*export.training.corpora.values(), export.training.replay]
        assert len(read) == 3
        for text in read:
            assert "decontaminate" in text.what()["corpus"], text.name
        # The text of dev is not decontaminated: it is only measured, and may itself be an evaluation set.
        assert "decontaminate" not in export.domain.what()["corpus"]


def test_near_copies_are_searched_among_the_same_documents(everything: Config) -> None:
    """The stages `dedup` and `prepare` must leave out the same dev and test text, because both number the documents."""
    near = replace(everything, corpus=replace(everything.corpus, deduplicate="near"))
    pool = built(near).training.corpora[POOL]
    assert isinstance(pool, Prepare)
    assert pool.unseen
    assert pool.dedup
    assert pool.dedup.unseen == pool.unseen


def test_the_text_field_of_a_whole_pool_matters(config: Config) -> None:
    curated = replace(config, tapt=TaptConfig(pool_paths="data/pool.jsonl"))
    assert differing(keys(curated), keys(changed(curated, "tapt.pool_text_field", "body"))) == TRAINED
