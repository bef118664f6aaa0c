"""Tests that unusable search spaces and objectives are refused before any trial runs. Trains no model."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from adapt.config import Config
from adapt.job import JOBS
from adapt.job.job_run import Job
from adapt.parse import parse_values
from adapt.support.errors import ConfigError
from adapt.tuning.job_trial import on_dev, trial_of
from adapt.tuning.search_checks import check_fields, check_objectives, read_space
from adapt.tuning.search_run import search_of
from tests.job.worlds import SPLITS, enter

ROOT = Path(__file__).resolve().parents[2]
SPACES = {
    "tapt": "tapt",
    "knn": "tapt",
    "l2sp": "tapt",
    "finetune": "finetune",
    "das": "sequence",
    "forgetting": "sequence",
    "sequence": "sequence",
}


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Returns values of a configuration that are valid for every job. The file of the test split does not exist."""
    config = enter(tmp_path, monkeypatch, *SPLITS, "one", "general")
    (tmp_path / "data" / "test.jsonl").unlink()
    return {
        "model.path": config.model.path,
        "storage.root": config.storage.root,
        "task": {"name": "one", **{split: f"data/{split}.jsonl" for split in SPLITS}},
        "training.sequence_length": 64,
        "evaluation.sequence_length": 64,
        "finetune.seeds": [0, 1],
    }


def configure(job: Job, given: Mapping[str, Any], values: Mapping[str, Any]) -> Config:
    return parse_values({**given, **values}, job.kind, "here")


def check(name: str, given: Mapping[str, Any], space: Mapping[str, Any]) -> None:
    job = JOBS[name]
    check_fields(
        space, "space.py", lambda values: configure(job, given, values), lambda each: trial_of(job, on_dev(each))
    )


@pytest.mark.parametrize("name", SPACES)
def test_our_spaces_suit_their_jobs(name: str, given: dict[str, Any]) -> None:
    sources: dict[str, Any] = {"corpus.sources": [{"name": "one", "paths": "data/one.jsonl"}], "training.max_steps": 5}
    more: dict[str, dict[str, Any]] = {
        "knn": {"select.kind": "knn", "select.pool_paths": "data/one.jsonl"},
        "l2sp": {"method.kind": "l2sp"},
        "das": {**sources, "method.kind": "das"},
        "forgetting": {**sources, "mixture.replay_paths": "data/general.jsonl"},
    }
    # A sequence needs a second domain, because with one domain there is no earlier text to replay.
    if name == "sequence":
        second = {"name": "two", "paths": "data/general.jsonl"}
        more[name] = {**sources, "corpus.sources": [*sources["corpus.sources"], second], "method.kind": "l2sp"}
    own = {**given, **more.get(name, {})}
    check(SPACES[name], own, read_space(str(ROOT / "tune_spaces" / f"{name}.py")))


def test_options_of_a_selection_and_of_its_embedder_can_be_searched(given: dict[str, Any]) -> None:
    own = {**given, "select.kind": "tsds", "select.pool_paths": "data/one.jsonl", "select.per_example": 1}
    check("tapt", own, {"tsds.alpha": tune.uniform(0.1, 0.9), "tfidf.dimension": tune.choice([8, 16])})
    with pytest.raises(ConfigError, match=r"dsir\.ngram in space\.py does not change anything that this job measures"):
        check("tapt", own, {"dsir.ngram": tune.choice([1, 2])})


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a field that is none": ("finetune", {"finetune.learning_rat": [1e-5, 1e-4]}, "unknown key finetune.learning_rat"),
    "a section": ("finetune", {"finetune": [1, 2]}, "unknown key finetune in"),
    "a word for a number": ("finetune", {"finetune.epochs": [1, "many"]}, "finetune.epochs takes"),
    "a fraction of an epoch": ("finetune", {"finetune.epochs": tune.uniform(1.0, 2.5)}, "finetune.epochs takes"),
    "a value out of range": ("finetune", {"finetune.dropout": tune.uniform(0.0, 1.0)}, "dropout is 1.0, but must be"),
    "a seed": ("finetune", {"seed": [1, 2]}, "is a seed"),
    "the seeds": ("finetune", {"finetune.seeds": [[1], [2]]}, "is a seed"),
    "a field of another job": (
        "finetune",
        {"tapt.batch_examples": [16, 32]},
        "does not change anything that this job measures",
    ),
    "how it is done": ("tapt", {"training.micro_batch": [1, 2]}, "does not change anything that this job measures"),
    "inside a phase": ("tapt", {"training.phases.1.learning_rate": [1e-4, 1e-3]}, "is a field inside a phase"),
    "where": ("tapt", {"storage.root": ["a", "b"]}, "does not change anything that this job measures"),
    "options of a method that is not used": (
        "tapt",
        {"l2sp.weight": [0.1, 0.2]},
        "unknown key|does not change anything",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_space_that_cannot_work_is_refused(name: str, given: dict[str, Any]) -> None:
    job, space, message = WRONG[name]
    space = {field: tune.choice(value) if isinstance(value, list) else value for field, value in space.items()}
    with pytest.raises(ConfigError, match=message) as caught:
        check(job, given, space)
    assert caught.value.fix


def test_an_unknown_field_names_the_nearest(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        check("finetune", given, {"finetune.learning_rat": tune.uniform(0.1, 0.2)})
    assert caught.value.fix == "did you mean finetune.learning_rate?"


def test_a_field_may_matter_only_for_some_values_of_another(given: dict[str, Any]) -> None:
    space = {"method.kind": tune.choice(["plain", "l2sp"]), "l2sp.alpha": tune.choice([0.1, 0.2])}
    check("tapt", given, space)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "empty"),
        (["dev_score", "dev_score"], "repeats a name"),
        (["dev_scor"], "reports no dev_scor"),
        (["losses.general.after"], "needs general text"),
        (["average"], "reports no average"),
    ],
)
def test_an_objective_that_no_trial_reports_is_refused(names: list[str], message: str, given: dict[str, Any]) -> None:
    job = JOBS["tapt"]
    config = configure(job, given, {"tune.objectives": names})
    with pytest.raises(ConfigError, match=message):
        check_objectives(config, trial_of(job, on_dev(config)))


def test_scores_need_a_task(given: dict[str, Any]) -> None:
    job = JOBS["dapt"]
    without = {name: value for name, value in given.items() if name != "task"} | {"corpus.paths": "data/one.jsonl"}
    config = configure(job, without, {})
    with pytest.raises(ConfigError, match="reports no dev_score") as caught:
        check_objectives(config, trial_of(job, on_dev(config)))
    assert "task.train" in caught.value.fix
    losses = configure(job, without, {"tune.objectives": ["losses.domain.after"]})
    check_objectives(losses, trial_of(job, on_dev(losses)))


def test_losses_on_a_domain_need_held_out_text(given: dict[str, Any]) -> None:
    """Without held-out text, all trials would train, and none would report its loss."""
    sources = [{"name": name, "paths": f"data/{file}.jsonl"} for name, file in (("one", "one"), ("two", "general"))]
    values = {"tune.objectives": ["losses.domain.after"], "corpus.heldout_fraction": 0}
    for corpus in ({"corpus.paths": "data/one.jsonl"}, {"corpus.sources": sources}):
        config = configure(JOBS["dapt"], given, {**values, **corpus})
        with pytest.raises(ConfigError, match=r"no trial can report losses\.domain\.after, because no text") as caught:
            check_objectives(config, trial_of(JOBS["dapt"], on_dev(config)))
        assert "set corpus.heldout_fraction above 0" in caught.value.fix
    config = configure(JOBS["tapt"], given, values)  # TAPT measures the loss on the dev split
    check_objectives(config, trial_of(JOBS["tapt"], on_dev(config)))


def test_a_figure_without_a_better_direction_is_refused(given: dict[str, Any]) -> None:
    job = JOBS["tapt"]
    for name in ("steps", "tokens"):
        config = configure(job, given, {"tune.objectives": [name]})
        with pytest.raises(ConfigError, match=f"neither higher nor lower values of {name} are better") as caught:
            check_objectives(config, trial_of(job, on_dev(config)))
        assert "losses.domain.after" in caught.value.fix


@pytest.mark.parametrize(("objective", "way"), [("loss_forward_transfer", "max"), ("loss_forgetting", "min")])
def test_the_result_declares_which_direction_is_better(given: dict[str, Any], objective: str, way: str) -> None:
    """The word "loss" in a metric's name does not decide the direction: higher `loss_forward_transfer` is better."""
    Path("space.yaml").write_text("training.learning_rate: [1.0e-3, 1.0e-4]")
    domains = [{"name": name, "paths": f"data/{file}.jsonl"} for name, file in (("one", "one"), ("two", "general"))]
    own = {**given, "corpus.sources": domains, "training.max_steps": 5, "method.kind": "plain"}
    own |= {"tune": {"space": "space.yaml", "objectives": [objective], "fresh_seeds": []}}
    job = JOBS["sequence"]
    search = search_of(job, configure(job, own, {}), partial(configure, job, own))
    assert search.directions == {objective: way}
