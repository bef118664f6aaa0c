"""Tests that longer runs continue from a shorter run's state, and end as if they had trained from the beginning."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray.train
import torch

from adapt.config import TrainingConfig, what
from adapt.runner import Record, Stage, Store
from adapt.runner.record import load_record
from adapt.runner.secret import secret_of
from adapt.stage.training_result import RAN_ON, outcome_of
from adapt.train import worker
from adapt.train.checkpoints.branch import BRANCHES, start_from_branch
from adapt.train.checkpoints.checkpoint import Checkpoints
from adapt.train.checkpoints.stored_checkpoints import (
    Sealing,
    checkpoints,
    folder_name,
    forgery_in,
    is_whole,
    sealed_run,
)
from adapt.train.meter import Utilization
from adapt.train.schedule import branch_step
from adapt.train.training_run import Progress
from tests.runner.toys import Toy, idle
from tests.train.checkpoints.sealed import seal
from tests.train.toy import Case, build, feed

WSD = {"schedule": "wsd", "warmup_steps": 2, "cooldown_fraction": 0.2}
PAID = Progress(800, 9000, seconds=70.0, data_wait_seconds=6.0, device_seconds=140.0, evaluation_seconds=9.0)
CORPUS = Toy("corpus", "prepare", idle)


def stage(training: TrainingConfig, **changes) -> Stage:
    """Returns a training stage whose key depends on the configuration and on `changes`."""
    identity = {"training": what(training), "seed": 1, **changes}
    return Toy("run", "train", idle, identity, CORPUS)


def finished(store: Store, made: Stage, steps: int) -> Path:
    """Creates the folder of a finished training run with its record but without other files."""
    folder = store.folder("train", "run", made.key)
    folder.mkdir(parents=True, exist_ok=True)
    record = Record(
        *("train", "run", made.key, made.version, dict(made.what())),
        {name: {"stage": each.kind, "key": each.key, "path": ""} for name, each in made.inputs.items()},
        *({"steps": steps}, {}, {}, {}, {}, "", folder),
    )
    record.save()
    return folder


def sealing(folder: Path, run: str) -> Sealing:
    return Sealing(secret_of(folder.parent.parent), sealed_run(folder, run))


def kept(folder: Path, step: int) -> Path:
    """Creates a sealed state in the folder of a stage, and returns its folder."""
    record = load_record(folder)
    assert record
    state = folder / BRANCHES / folder_name(step)
    (state / "state").mkdir(parents=True)
    (state / "state" / "weights").write_text(f"of {folder.name}")
    (state / "state.json").write_text(json.dumps({"workers": 1, "progress": vars(PAID)}))
    seal(state, sealing=sealing(folder, record.key[:8]))
    return state


def saved(checkpoint: Path) -> Progress:
    return Progress(**json.loads((checkpoint / "state.json").read_text())["progress"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def settings(**changes) -> TrainingConfig:
    return TrainingConfig(**{**WSD, "max_steps": 2000, **changes})


def start(store: Store, training: TrainingConfig, steps: int = 2000, **changes) -> list[str]:
    """Starts a new run from a stored state if possible, and returns the names of the checkpoints in its folder."""
    run_folder = store.root / "train" / "new-12" / "checkpoints" / "run"
    start_from_branch(stage(training, **changes), store, training, steps, run_folder)
    return [each.name for each in checkpoints(run_folder)]


def test_the_latest_usable_state_is_used(store: Store, capsys) -> None:
    for steps in (500, 1000, 4000):
        made = stage(settings(max_steps=steps))
        kept(finished(store, made, steps), steps * 4 // 5)
    assert start(store, settings()) == ["step-00000800"]
    taken = store.root / "train" / "new-12" / "checkpoints" / "run" / "step-00000800"
    assert is_whole(taken)
    source = store.folder("train", "run", stage(settings(max_steps=1000)).key)
    assert (taken / "state" / "weights").read_text() == f"of {source.name}"
    assert f"train: starts at step 800 of {source.name}, where its cooldown began" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changed",
    [
        {"learning_rate": 1e-4},
        {"warmup_steps": 3},
        {"warmup_steps": 3, "max_steps": 1000},
        {"weight_decay": 0.5},
        {"global_batch_size": 7},
        {"schedule": "constant"},
        {"cooldown_fraction": 0.7},  # this run's cooldown begins at step 600, before the state of step 800
    ],
)
def test_a_different_training_uses_no_state(store: Store, changed) -> None:
    kept(finished(store, stage(settings(max_steps=1000)), 1000), 800)
    assert start(store, settings(**changed)) == []


def test_a_training_with_other_inputs_uses_no_state(store: Store) -> None:
    kept(finished(store, stage(settings(max_steps=1000)), 1000), 800)
    assert start(store, settings(), seed=2) == []


@pytest.mark.parametrize(
    "changed", [{"max_tokens": 10**9}, {"epochs": 2.0}, {"cooldown_fraction": 0.5}, {"checkpoint_interval_steps": 7}]
)
def test_states_are_shared_whatever_limit_and_resources_are_configured(store: Store, changed) -> None:
    kept(finished(store, stage(settings(max_steps=1000)), 1000), 800)
    assert start(store, settings(**changed)) == ["step-00000800"]


def test_a_shorter_run_uses_no_state(store: Store) -> None:
    kept(finished(store, stage(settings(max_steps=1000)), 1000), 800)
    assert start(store, settings(max_steps=700), steps=700) == []


def test_unfinished_runs_and_incomplete_states_are_ignored(store: Store) -> None:
    folder = finished(store, stage(settings(max_steps=1000)), 1000)
    (kept(folder, 800) / "state" / "weights").write_text("cut")
    unfinished = finished(store, stage(settings(max_steps=500)), 500)
    kept(unfinished, 400)
    (unfinished / "stage.json").unlink()
    assert start(store, settings()) == []


def test_a_warm_up_that_depends_on_the_length_is_logged(store: Store, capsys) -> None:
    fraction = {"warmup_steps": None, "warmup_fraction": 0.1}
    folder = finished(store, stage(settings(max_steps=1000, **fraction)), 1000)
    kept(folder, 800)
    assert start(store, settings(**fraction)) == []
    told = capsys.readouterr().err
    assert f"starts at step 0, because its warm-up differs from that of {folder.name}" in told
    assert "if you set training.warmup_steps" in told


@pytest.mark.parametrize(("own", "expected"), [(900, [900]), (800, [800]), (100, [100, 800])])
def test_a_run_that_is_already_further_uses_its_own_checkpoint(store: Store, capsys, own, expected) -> None:
    kept(finished(store, stage(settings(max_steps=1000)), 1000), 800)
    checkpoint = store.root / "train" / "new-12" / "checkpoints" / "run" / folder_name(own)
    checkpoint.mkdir(parents=True)
    seal(checkpoint)
    assert start(store, settings()) == [folder_name(step) for step in expected]
    assert ("starts at step 800" in capsys.readouterr().err) == (own == 100)


@pytest.mark.parametrize("links", [True, False])
def test_a_copy_that_was_killed_is_repeated(store: Store, monkeypatch, links) -> None:
    kept(finished(store, stage(settings(max_steps=1000)), 1000), 800)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            start(store, settings())
    run_folder = store.root / "train" / "new-12" / "checkpoints" / "run"
    assert checkpoints(run_folder) == []
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("not here")))
    assert start(store, settings()) == ["step-00000800"]
    assert [each.name for each in run_folder.iterdir()] == ["step-00000800"]


@pytest.mark.parametrize("links", [True, False])
def test_the_time_of_the_other_run_is_not_counted(store: Store, monkeypatch, links) -> None:
    source = kept(finished(store, stage(settings(max_steps=1000)), 1000), 800)
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("not here")))
    start(store, settings())
    taken = store.root / "train" / "new-12" / "checkpoints" / "run" / "step-00000800"
    assert is_whole(taken)
    assert saved(taken) == Progress(step=800, tokens=9000, inherited_tokens=9000)
    assert saved(taken).own_tokens == 0
    assert is_whole(source)
    assert saved(source) == PAID


def test_a_record_has_only_the_runs_own_cost(monkeypatch) -> None:
    """The run trained on 6,000 tokens in 50 s on two devices, and inherited 9,000 tokens from another run.

    The cost in the record counts only the run's own tokens and time. Result fields such as the number of tokens include
    the inherited part.
    """
    monkeypatch.setattr(worker, "peak_memory", lambda _: 1)
    loop = SimpleNamespace(engine=SimpleNamespace(device=None))
    utilization = Utilization(needed=2.0, done=3.0, peak=1000.0)
    parts = worker.RankParts(loop, None, {**dict.fromkeys(RAN_ON, "x"), "padding": None}, utilization)
    outcome = outcome_of(parts.figures(Progress(1000, 15000, 9000, 50.0, 5.0, 100.0)), 36.0, False, None)
    assert outcome.cost == {"device_seconds": 100.0, "device_hours": 1 / 36, "cost": 1.0, "tokens": 6000}
    expected = {"tokens": 15000, "tokens_per_s": 120.0, "data_wait_share": 0.1, "flops": 18000.0, "mfu": 0.24}
    assert {name: getattr(outcome.result, name) for name in expected} == pytest.approx(expected)


# --- whole runs with the real engine and loop


def stored(folder: Path):
    """Returns an imitation of `ray.train.report` that moves a checkpoint to the run's folder."""

    def report(metrics, checkpoint, checkpoint_dir_name, **_):
        shutil.copytree(checkpoint.path, folder / checkpoint_dir_name, dirs_exist_ok=True)
        shutil.rmtree(checkpoint.path)

    return report


def run(case: Case, folder: Path, name: str = "run") -> tuple[dict[str, torch.Tensor], int]:
    """Returns the final weights of a run and the step at which the run started."""
    loop = build(case)
    run_folder = folder / "checkpoints" / name
    ray.train.report = stored(run_folder)
    states = Checkpoints(
        *(loop.engine, loop.method, run_folder, sealing(folder, name)),
        *(folder / BRANCHES, branch_step(loop.training, case.steps)),
    )
    progress = states.load()
    first = progress.step
    loop.run(feed(first, case.steps), progress, lambda _: None, states.save)
    assert progress == replace(progress, step=case.steps)
    return loop.engine.full_state(), first


@pytest.mark.parametrize(("world", "zero_stage"), [(1, 0), (2, 2)])
def test_a_longer_run_ends_as_if_trained_from_scratch(ranks, store: Store, world, zero_stage) -> None:
    def case(steps: int) -> Case:
        return Case(zero_stage, steps=steps, dropout=0.1, training={**WSD, "checkpoint_interval_steps": 3})

    short, long = (stage(TrainingConfig(**WSD, max_steps=steps)) for steps in (10, 20))
    folder = finished(store, short, 10)
    ranks(world).run(run, case(10), folder, short.key[:8])
    assert [each.name for each in checkpoints(folder / BRANCHES)] == ["step-00000008"]
    assert saved(folder / BRANCHES / "step-00000008").step == 8

    scratch, begun = ranks(world).run(run, case(20), store.root / "train" / "scratch-34")[0]
    assert begun == 0
    new = store.root / "train" / "new-12"
    start_from_branch(long, store, TrainingConfig(**WSD, max_steps=20), 20, new / "checkpoints" / "run")
    weights, begun = ranks(world).run(run, case(20), new)[0]
    assert begun == 8
    whole, ended = (
        saved(store.root / "train" / name / "checkpoints" / "run" / "step-00000020")
        for name in ("scratch-34", "new-12")
    )
    shared = saved(folder / BRANCHES / "step-00000008")
    assert ended.tokens == whole.own_tokens == whole.tokens
    assert ended.own_tokens == whole.tokens - shared.tokens
    assert all(torch.equal(value, scratch[name]) for name, value in weights.items())
    assert is_whole(new / BRANCHES / "step-00000016")


def test_a_run_that_was_killed_while_it_stored_its_state_stores_it_again(ranks, tmp_path) -> None:
    """The killed run leaves a folder that may be incomplete and may be from a different number of ranks."""
    torn = tmp_path / BRANCHES / "step-00000008"
    torn.mkdir(parents=True)
    (torn / "seal-1-of-3.json").write_text("{}")
    ranks(2).run(run, Case(steps=10, training=WSD), tmp_path)
    assert is_whole(torn)


# --- damaged states and states of other users


def test_a_damaged_state_is_skipped_and_named(store: Store, capsys) -> None:
    source = kept(finished(store, stage(settings(max_steps=1000)), 1000), 800)
    (source / "state" / "weights").write_text("of another")
    assert (source / "state" / "weights").stat().st_size != 0
    weights = source / "state" / "weights"
    kept_size = len(f"of {source.parent.parent.name}")
    weights.write_text("x" * kept_size)
    assert start(store, settings()) == []
    assert f"{source} is skipped: state/weights has other content" in capsys.readouterr().err


def test_a_state_of_another_user_is_skipped(store: Store, capsys) -> None:
    source = kept(finished(store, stage(settings(max_steps=1000)), 1000), 800)
    seal(source)  # signs the state with another user's key
    assert start(store, settings()) == []
    assert f"{source} is skipped: seal-0-of-1.json is not signed by this user's key" in capsys.readouterr().err


def test_a_linked_state_is_signed_for_the_new_run(store: Store) -> None:
    source = kept(finished(store, stage(settings(max_steps=1000)), 1000), 800)
    assert start(store, settings()) == ["step-00000800"]
    new = store.root / "train" / "new-12"
    taken = new / "checkpoints" / "run" / "step-00000800"
    assert forgery_in(taken, sealing(new, "run")) is None
    assert forgery_in(taken, sealing(source.parent.parent, "run")) is not None
