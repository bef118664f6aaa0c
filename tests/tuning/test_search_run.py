"""Tests searches from command lines: an invalid search is refused before its first trial."""

from pathlib import Path

import pytest

from adapt.support.errors import AdaptError
from adapt.tuning.search_run import check_search, search_of_command
from adapt.tuning.search_stage import Search
from tests.job.worlds import SPLITS, enter
from tests.jobs.commands import replaced

RATES = "finetune.learning_rate: {loguniform: [1.0e-5, 1.0e-3]}"
LISTED = "finetune.learning_rate: [1.0e-5, 1.0e-4]\nfinetune.dropout: [0.0, 0.1]"


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the command-line arguments of a valid search, without its space."""
    config = enter(tmp_path, monkeypatch, *SPLITS, "general")
    splits = [f"--task.{split}=data/{split}.jsonl" for split in SPLITS]
    lengths = ["--training.sequence_length=64", "--evaluation.sequence_length=64"]
    return [f"--model.path={config.model.path}", f"--storage.root={config.storage.root}", *splits, *lengths]


def asked(given: list[str], space: str, *arguments: str) -> Search:
    """Builds the search from a space and arguments, and runs all checks that precede the first trial."""
    from adapt.runner import Store
    from adapt.stage.context import root_of

    Path("finetune.yaml").write_text(space)
    search = search_of_command([*given, *arguments])
    check_search(search, Store(root_of(search.config)))
    return search


def test_the_job_is_the_one_that_the_space_is_named_after_or_the_one_that_is_named(given: list[str]) -> None:
    assert asked(given, RATES, "--space", "finetune.yaml").job.name == "finetune"
    assert asked(given, RATES, "--space=finetune.yaml", "--job=tapt").job.name == "tapt"


def test_the_command_line_may_set_any_field(given: list[str]) -> None:
    config = asked(given, RATES, "--space=finetune.yaml", "--tune.samples=3", "--finetune.epochs=2").config
    assert (config.tune.samples, config.finetune.epochs) == (3, 2)


SPACE = "--space=finetune.yaml"
WRONG: dict[str, tuple[str, list[str], str]] = {
    "no space": (RATES, [], "tune.space is empty"),
    "no such space": (RATES, ["--space=tapd"], "tune.space: there is no file tapd"),
    "no space for a job": (RATES, ["--job=finetune"], r"tune\.space is empty"),
    "a space that is not there": (RATES, ["--space=gone/finetune.yaml"], "there is no file gone/finetune.yaml"),
    "a space named after no job": (RATES, ["--space=l2sp"], "the file name l2sp is not the name of a job"),
    "a job that is none": (RATES, [SPACE, "--job=finetun"], "finetun"),
    "an empty space": ("{}", [SPACE], "searches no field"),
    "an unknown field": ("finetune.rate: [1, 2]", [SPACE], r"unknown key finetune\.rate"),
    "a domain of the wrong type": ("finetune.epochs: [1, many]", [SPACE], r"finetune\.epochs takes"),
    "a value out of range": ("finetune.dropout: {uniform: [0, 2]}", [SPACE], r"dropout is 2"),
    "a field that does not matter": (
        "tapt.batch_examples: [1, 2]",
        [SPACE],
        "does not change anything that this job measures",
    ),
    "an objective that is not reported": (RATES, [SPACE, "--tune.objectives=[loss]"], "reports no loss"),
    "a grid of ranges": (RATES, [SPACE, "--tune.searcher=grid"], "has a range of values"),
    "a grid that is too large": (LISTED, [SPACE, "--tune.searcher=grid", "--tune.samples=3"], "4 combinations"),
    "population-based training": (RATES, [SPACE, "--tune.scheduler=pbt"], r"tune\.scheduler takes"),
    "ASHA of fine-tuning": (RATES, [SPACE, "--tune.scheduler=asha"], "this training run cannot continue"),
    "seeds that were seen": (RATES, [SPACE, "--tune.fresh_seeds=[0]"], "already use the seeds"),
    "a test that is not there": (RATES, [SPACE, "--task.test=gone.jsonl"], "gone.jsonl matches no file"),
    "a dev that is not there": (RATES, [SPACE, "--task.dev=gone.jsonl"], "gone.jsonl matches no file"),
    "no sample": (RATES, [SPACE, "--tune.samples=0"], "samples is 0"),
    "no budget": (RATES, [SPACE, "--tune.budget_device_hours=0"], "budget_device_hours is 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_work_is_refused_before_the_first_trial(name: str, given: list[str]) -> None:
    space, arguments, message = WRONG[name]
    with pytest.raises(AdaptError, match=message) as caught:
        asked(replaced(given, *arguments), space)
    assert caught.value.fix
    assert not Path("runs/search").exists()
