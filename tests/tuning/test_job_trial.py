"""Tests the stages, scores and losses, resources and micro-batches of a trial."""

import os
import pickle
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from ray.exceptions import OutOfMemoryError

from adapt.config import Config, MethodConfig, ModelConfig, ResourcesConfig, TrainingConfig, TuneConfig
from adapt.evaluate.measurements import Estimate
from adapt.job import JOBS
from adapt.job.job_run import Job
from adapt.method.das.method import DasOptions
from adapt.method.das.stage import Measuring
from adapt.method.das.unit_sizes import gradients_on_cluster, measure_settings
from adapt.model.locate import Pretrained
from adapt.parse import parse
from adapt.ray import runtime
from adapt.ray.node_files import OnNode
from adapt.runner.stage import everything
from adapt.stage.context import Context
from adapt.stage.train import Train
from adapt.support.errors import ClusterError, DeviceMemoryError
from adapt.train.capacity import device
from adapt.tuning import job_trial
from adapt.tuning.job_trial import (
    Trial,
    as_file,
    check_trial_resources,
    named_by_values,
    numbers_of,
    on_dev,
    settings_of,
    side_by_side,
    trial_of,
    with_fewer,
)
from tests.job.worlds import sequence_world, task_world


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return task_world(tmp_path, monkeypatch)


def built(name: str, config: Config) -> Trial:
    return trial_of(JOBS[name], on_dev(config))


@pytest.mark.parametrize("name", ["tapt", "finetune"])
def test_a_trial_needs_no_test_split(name: str, config: Config) -> None:
    """The stages of a trial are built without the test file. The same job outside a search fails without it."""
    Path("data/test.jsonl").unlink()
    assert built(name, config).runs
    with pytest.raises(Exception, match=r"test\.jsonl"):
        trial_of(JOBS[name], config)


def test_dev_is_the_test_split_of_all_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = on_dev(sequence_world(tmp_path, monkeypatch))
    assert seen.tasks
    assert all(task.test == task.dev != task.train for task in seen.tasks)


def test_a_model_is_taught_its_tasks_with_every_seed(config: Config) -> None:
    trial = built("tapt", config)
    (runs,) = trial.runs.values()
    assert [run.seed for run in runs] == config.finetune.seeds
    assert {run.start.training for run in runs} == {trial.final.training}  # type: ignore[attr-defined]


def test_no_fine_tuning_without_an_objective_that_needs_it(config: Config) -> None:
    assert not built("tapt", replace(config, tune=TuneConfig(objectives=["losses.domain.after"]))).runs


def test_a_job_that_fine_tunes_is_measured_by_its_own_runs(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = built("finetune", config)
    assert {run.key for runs in trial.runs.values() for run in runs} == {
        run.key
        for run in trial.final.runs.values()  # type: ignore[attr-defined]
    }


def test_trials_share_equal_stages(config: Config) -> None:
    other = replace(config, training=replace(config.training, learning_rate=3e-3))
    one, two = ({stage.key: stage.kind for stage in everything([built("tapt", each)])} for each in (config, other))
    shared = [one[key] for key in one.keys() & two.keys()]
    assert {"texts", "prepare", "task", "evaluate"} <= {*shared}
    assert not {"train", "finetune", "export", "trial"} & {*shared}


def test_equal_values_make_one_trial(config: Config) -> None:
    same = named_by_values(config, {"training.learning_rate": config.training.learning_rate})
    assert same.name != config.name
    assert built("tapt", same) == built("tapt", config)


@dataclass(frozen=True)
class Result:
    loss: Estimate
    steps: int
    model: str
    transductive: bool
    general: float | None = None


def test_the_numbers_of_a_result_come_with_their_intervals() -> None:
    found = numbers_of(Result(Estimate(2.0, 1.0, 3.0), 7, "x", True))
    assert {name: (each.value, each.low, each.high) for name, each in found.items()} == {
        "loss": (2.0, 1.0, 3.0),
        "steps": (7.0, None, None),
    }


@pytest.mark.parametrize("name", ["tapt", "finetune"])
def test_the_written_configuration_is_the_same(name: str, config: Config, tmp_path: Path) -> None:
    job: Job = JOBS[name]
    arguments: list[str] = [f"--model.path={config.model.path}", f"--storage.root={config.storage.root}"]
    arguments += [f"--task.{split}=data/{split}.jsonl" for split in ("train", "dev", "test")]
    wanted = parse([*arguments, "--training.learning_rate=3e-3", "--finetune.seeds=[4,5]"], "", job.kind)
    file = tmp_path / "best.yaml"
    file.write_text(as_file(settings_of(wanted, job)))
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    assert content["finetune"] == {"seeds": [4, 5]}
    assert parse([f"--config={file}"], "", job.kind) == wanted


def test_the_written_configuration_has_no_credentials() -> None:
    text = as_file({"corpus": {"paths": "https://me:pass@host/a.jsonl?sig=abc"}})
    assert yaml.safe_load(text) == {"corpus": {"paths": "https://host/a.jsonl"}}
    assert text.startswith("# Credentials are left out")


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the cluster by one machine with two cores and no GPU."""

    def placeable(bundle: dict[str, float]) -> int:
        return int(2 // bundle["CPU"])

    monkeypatch.setattr(runtime, "placeable_workers", placeable)
    monkeypatch.setattr(runtime, "cluster_totals", lambda bundle: {"CPU": 2.0})
    monkeypatch.setattr(runtime, "gpus_per_worker", lambda resources: 0.0)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def checked(job: str, config: Config) -> None:
    check_trial_resources(config, trial_of(JOBS[job], on_dev(config)))


def test_workers_that_cannot_be_placed_are_refused_with_the_nearest_that_can(
    cores: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = task_world(tmp_path, monkeypatch)
    checked("tapt", config)
    with pytest.raises(ClusterError, match="room for 2 of 4 workers") as caught:
        checked("tapt", replace(config, resources=ResourcesConfig(workers=4)))
    assert "set resources.workers to at most 2" in caught.value.fix
    # Fine-tuning uses no training workers, so the number of workers is not checked.
    checked("finetune", replace(config, resources=ResourcesConfig(workers=4)))
    # For a range of workers, only the minimum number must fit in memory.
    checked("tapt", replace(config, resources=ResourcesConfig(workers=(1, 4))))
    with pytest.raises(ClusterError, match="room for 2 of 4 workers"):
        checked("tapt", replace(config, resources=ResourcesConfig(workers=(4, 8))))


def test_fine_tuning_that_takes_more_than_a_machine_has_is_refused(
    cores: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = task_world(tmp_path, monkeypatch)
    for job in ("finetune", "tapt"):
        with pytest.raises(ClusterError, match="room for 0 of 1 workers with 8 CPU") as caught:
            checked(job, replace(config, finetune=replace(config.finetune, cpus_per_seed=8)))
        assert caught.value.fix == "lower finetune.cpus_per_seed or finetune.gpus_per_seed"


@pytest.mark.parametrize(
    ("cores", "at_once", "gib", "resources", "expected"),
    [
        (2, 4, 64, {}, 2),
        (16, 4, 64, {}, 4),
        (16, 4, 64, {"workers": 2, "cpus_per_worker": 3.0}, 2),
        (16, 4, 64, {"workers": (1, 8)}, 2),
        (2, 4, 64, {"workers": 2}, 1),
        (1, 1, 64, {}, 1),
        (16, 4, 64, {"trainings_per_machine": 3}, 3),
        (16, 4, 64, {"address": "auto"}, None),
        # Each process needs 1 GiB before it loads a model, so 3 trials fit in 3.5 GiB.
        (16, 4, 3.5, {}, 3),
        (16, 4, 0.5, {}, 1),
        (16, 4, 3.5, {"trainings_per_machine": 4}, 4),
        (16, 4, 3.5, {"workers": 2}, 1),
    ],
)
def test_trials_share_this_machine_if_there_is_a_core_and_memory_for_each_worker(
    cores: int,
    at_once: int,
    gib: float,
    resources: dict[str, Any],
    expected: int | None,
    tiny_bert: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(cores)})
    monkeypatch.setattr(device, "machine_memory", lambda: int(gib * 2**30))
    world = task_world(tmp_path, monkeypatch)
    world = replace(world, model=ModelConfig(path=str(tiny_bert)))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    context = Context.of(replace(world, tune=TuneConfig(at_once=at_once)))
    config = replace(context.config, resources=ResourcesConfig(**resources))
    shared = side_by_side(context.configured(config)).config
    assert shared.resources == replace(config.resources, trainings_per_machine=expected)


def test_trials_on_gpus_do_not_share_the_memory_of_the_machine(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test fails if the memory of the machine is measured: `may_fit` must not be called for trials on GPUs."""
    monkeypatch.setattr(job_trial, "has_gpu", lambda: True)
    monkeypatch.setattr(job_trial, "may_fit", lambda *_: pytest.fail("the memory of the machine was asked for"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(16)})
    world = task_world(tmp_path, monkeypatch)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = replace(world, model=ModelConfig(path=str(tiny_bert)), tune=TuneConfig(at_once=4))
    assert side_by_side(Context.of(config)).config.resources.trainings_per_machine == 4


def test_the_number_of_trials_on_a_machine_changes_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = on_dev(task_world(tmp_path, monkeypatch))
    found = []
    for trainings in (None, 1, 2):
        shared = replace(config, resources=ResourcesConfig(workers=2, trainings_per_machine=trainings))
        stages = everything([trial_of(JOBS["tapt"], shared)])
        found.append(next(stage for stage in stages if isinstance(stage, Train)))
    assert len({stage.key for stage in found}) == 1


@pytest.mark.parametrize(("sequences", "fewer"), [(16, 8), (5, 2), (2, 1)])
def test_fine_tuning_takes_half_the_examples(sequences: int, fewer: int) -> None:
    error = DeviceMemoryError("it ran out", "take fewer", sequences, field="finetune.micro_batch")
    assert with_fewer(Config(), pickle.loads(pickle.dumps(error))) == {"finetune.micro_batch": fewer}


def test_a_training_takes_the_next_divisor_of_its_share() -> None:
    config = Config(training=TrainingConfig(global_batch_size=24), resources=ResourcesConfig(workers=2))
    error = DeviceMemoryError("it ran out", "take fewer", 12)
    assert with_fewer(config, error) == {"training.micro_batch": 6}


class Fits(Exception):
    """Raised by the fake Ray task when its micro-batch fits, because the fake task cannot return a result."""


def on_machines_with_room_for(rows: int, patch: pytest.MonkeyPatch) -> None:
    """Replaces `ray.remote`: tasks with more rows per pass fail as if Ray's memory monitor had killed them."""

    def remote(task: Any, call: OnNode, function: partial[Any], *_: Any) -> Any:
        if measure_settings(function.args[0], "fp32").rows > rows:
            raise OutOfMemoryError("Task was killed due to the node running low on memory.")
        raise Fits

    patch.setattr("ray.remote", lambda **_: lambda task: SimpleNamespace(remote=partial(remote, task)))
    patch.setattr("ray.get", lambda made: made)
    patch.setattr("ray.cluster_resources", dict)


@pytest.mark.parametrize(("about", "tried"), [("domain", [64, 48, 32, 24, 16, 12]), ("general", [64, 48, 32, 24])])
def test_workers_killed_while_auto_measures_importance_take_fewer_until_they_fit(
    about: Any, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurement starts with 64 sequences of 64 tokens per pass and reduces them until a pass with 12 fits.

    For general importance, a pass holds half of the micro-batch, because each sequence needs two views: 24 fits.
    """
    training = TrainingConfig(global_batch_size=96, sequence_length=64, micro_batch="auto")
    config = Config(training=training, method=MethodConfig("das"), method_options=DasOptions())
    on_machines_with_room_for(12, monkeypatch)
    seen: list[int] = []
    while True:
        measuring = Measuring(config, DasOptions(), Pretrained(Path(), Path()), (), None, about)
        try:
            gradients_on_cluster(measuring, np.arange(100))
        except DeviceMemoryError as error:
            seen.append(error.micro_batch)
            (fewer,) = with_fewer(config, error).values()
            config = replace(config, training=replace(training, micro_batch=fewer))
        except Fits:
            break
    assert [*seen, config.training.micro_batch] == tried
