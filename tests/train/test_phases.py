"""Phases of a training: their configurations, lengths and order of text, and runs that go on from phase to phase."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray.train
import torch

from adapt.config import Config, CorpusConfig, MethodConfig, MixtureConfig, PhaseConfig, SourceConfig, TrainingConfig
from adapt.corpus.sample_order import Mixture
from adapt.method.average import AverageOptions
from adapt.runner import Store
from adapt.runner.record import load_record
from adapt.stage.training_plan import RunPart, part_of
from adapt.support.errors import ConfigError, DataError, StorageError
from adapt.train.checkpoints.branch import start_from_branch, start_from_phase
from adapt.train.checkpoints.checkpoint import Checkpoints
from adapt.train.checkpoints.retain import checkpoints
from adapt.train.phases import check_phases, phases_of
from adapt.train.schedule import RunLength, learning_rate
from tests.train.checkpoints.test_branch import finished, sealing, stage, stored
from tests.train.toy import Case, build, feed, moments, reference

# --- configurations


def config(*phases: dict[str, Any], **training: Any) -> Config:
    sources = [SourceConfig(name, paths=name) for name in "ab"]
    return Config(
        corpus=CorpusConfig(sources=sources),
        training=TrainingConfig(phases=[PhaseConfig(**phase) for phase in phases], **training),
    )


def test_a_phase_has_its_own_values_and_otherwise_those_of_the_run() -> None:
    first, last = phases_of(
        config(
            {"steps": 10, "objective": {"mask_fraction": 0.3}, "warmup_steps": 3},
            {
                "tokens": 4096,
                "learning_rate": 1e-3,
                "schedule": "one_minus_sqrt",
                "floor_fraction": 0.1,
                "sequence_length": 64,
                "mixture": {"replay_fraction": 0.0},
                "weights": {"b": 2},
                "objective": {"kind": "whole_word"},
            },
            learning_rate=3e-4,
            optimizer="stable_adamw",
        )
    )
    assert (first.config.training.learning_rate, first.config.training.max_steps) == (3e-4, 10)
    assert (first.config.objective.mask_fraction, first.config.objective.kind) == (0.3, "mlm")
    training = last.config.training
    assert (training.optimizer, training.max_tokens, training.sequence_length) == ("stable_adamw", 4096, 64)
    assert (last.config.objective.kind, last.config.objective.mask_fraction) == ("whole_word", 0.15)
    assert last.config.mixture.replay_fraction == 0
    assert [source.weight for source in last.config.corpus.sources] == [0, 2]
    rates = [learning_rate(training, step, 4) for step in range(4)]
    assert rates == pytest.approx([1e-3 * (0.1 + 0.9 * (1 - (step / 4) ** 0.5)) for step in range(4)])
    assert [learning_rate(first.config.training, step, 10) for step in (0, 2, 9)] == pytest.approx([1e-4, 3e-4, 3e-4])


@pytest.mark.parametrize(
    ("phases", "limits", "expected"),
    [
        ([{"fraction": 0.6}, {"fraction": 0.3}, {}], {"max_steps": 100}, [60, 30, 10]),
        ([{"fraction": 1 / 3}, {"fraction": 1 / 3}, {"fraction": 1 / 3}], {"max_steps": 100}, [33, 34, 33]),
        ([{"steps": 7}, {}], {"max_steps": 100}, [7, 93]),
        ([{"fraction": 0.5}, {"fraction": 0.5, "sequence_length": 256}], {"max_steps": 100}, [50, 100]),
        ([{"fraction": 0.5}, {"fraction": 0.5, "global_batch_size": 4096}], {"max_tokens": 100 * 2**20}, [50, 25]),
        ([{"steps": 7}, {"tokens": 2**20 + 1}], {}, [7, 2]),
    ],
)
def test_the_steps_of_phases_fill_the_run(phases: Any, limits: Any, expected: list[int]) -> None:
    mixture = Mixture.of([10**9], 0)
    parts: list[RunPart] = []
    for phase in phases_of(config(*phases, **limits)):
        parts.append(part_of(phase.config, mixture, phase, parts[-1] if parts else None))
    assert [part.last - part.first for part in parts] == expected


REFUSED: dict[str, tuple[Config, str]] = {
    "sum above the run": (config({"fraction": 0.8}, {"fraction": 0.4}), r"add up to 1\.2 of the run"),
    "sum below the run": (config({"fraction": 0.5}, {"fraction": 0.4}), r"add up to 0\.9 of the run"),
    "nothing is left": (config({"steps": 100}, {}, max_steps=100), "leave nothing for entry 2"),
    "two rests": (config({}, {}), "entries 1 and 2 have no length"),
    "two lengths": (config({"steps": 1, "fraction": 0.5}), "entry 1 has steps and fraction"),
    "a limit and lengths": (config({"steps": 1}, max_steps=10), r"training\.max_steps is set, but the phases"),
    "unknown length": (config({"steps": 1}, {}, epochs=1.0), r"whose length is training\.epochs"),
    "a schedule": (config({"steps": 1}, schedule="wsd"), r"training\.schedule is set, but training\.phases"),
    "a warm-up": (config({"steps": 1}, warmup_steps=1), r"training\.warmup_steps is set, but training\.phases"),
    "a long warm-up": (config({"steps": 3, "warmup_steps": 4}), "entry 1: warmup_steps 4 is longer"),
    "unknown field": (config({"objective": {"mask": 0.1}}), "unknown key mask in training.phases, entry 1, objective"),
    "wrong value": (config({"objective": {"mask_fraction": 2}}), "mask_fraction is 2, but must be >0 and <1"),
    "replayed files": (config({"mixture": {"replay_paths": "x"}}), "replay_paths, which is the same in all phases"),
    "unknown source": (config({"weights": {"c": 1.0}}), "weights has 'c', which is no source"),
    "no weight": (config({"weights": {"a": 0.0}}), "entry 1: all weights are 0"),
    "a stop": (replace(config({}), mixture=MixtureConfig(exhausted="stop")), r"mixture\.exhausted is stop"),
    "a window": (
        replace(config({}), method=MethodConfig("average"), method_options=AverageOptions()),
        r"method\.kind average changes with the length",
    ),
    "streamed lengths": (
        replace(config({"sequence_length": 8}), corpus=CorpusConfig(paths="a", streaming=True)),
        "entry 1 has its own sequence_length, but a streamed corpus",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_contradictions_are_refused_by_name(case: str) -> None:
    wrong, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        check_phases(wrong)


def test_a_share_below_one_step_is_refused() -> None:
    _, small = phases_of(config({"fraction": 0.99}, {}, max_steps=10))
    with pytest.raises(ConfigError, match="entry 2 is less than one step of the run of 10 steps"):
        small.steps(RunLength(10, 10))


# --- order of text


def parts_of(*phases: dict[str, Any], rows: tuple[int, ...] = (700, 300), **training: Any) -> list[RunPart]:
    """Returns the parts of phases with batches of 10 rows of 16 tokens, over two sources and 500 general rows."""
    parts: list[RunPart] = []
    given = config(*phases, global_batch_size=10, sequence_length=16, **training)
    for phase in phases_of(given):
        scale = 16 / phase.config.training.sequence_length
        weights = [source.weight or 0 for source in phase.config.corpus.sources]
        mixture = Mixture.of(
            [round(count * scale) for count in rows],
            3,
            phase.config.mixture,
            weights if any(weights) else None,
            [round(500 * scale)],
        )
        parts.append(part_of(phase.config, mixture, phase, parts[-1] if parts else None))
    return parts


def drawn(part: RunPart) -> np.ndarray:
    """Returns source, epoch and row of all samples of a part, int64 [3, samples]."""
    (stretch,) = part.stretches
    return np.stack(stretch.mixture.locate(np.arange(stretch.sample, stretch.end)))


def test_phases_with_one_mixture_continue_the_order_of_a_single_run() -> None:
    parts = parts_of({"steps": 33}, {"steps": 50, "objective": {"mask_fraction": 0.3}}, {"steps": 7})
    whole = parts_of({"steps": 90})
    assert np.array_equal(np.concatenate([drawn(part) for part in parts], axis=1), drawn(whole[0]))
    assert [sum(rows) for rows in zip(*(part.rows for part in parts), strict=True)] == whole[0].rows


def test_each_source_goes_on_where_the_phase_before_stopped() -> None:
    """The domain is drawn at 90%, then alone. All its rows come once before any row comes again."""
    first, alone = parts_of({"steps": 60}, {"steps": 50, "mixture": {"replay_fraction": 0.0}})
    assert alone.rows[2] == 0
    sources, epochs, rows = np.concatenate([drawn(first), drawn(alone)], axis=1)
    domain = sources < 2
    seen = list(zip(sources[domain], rows[domain], strict=True))
    assert len(set(seen[:1000])) == 1000
    assert list(np.unique(epochs[domain][:1000])) == [0]
    assert set(epochs[domain][1000:]) == {1}


def test_rows_of_another_length_go_on_at_the_same_number_of_tokens() -> None:
    short, long = parts_of({"steps": 60}, {"steps": 10, "sequence_length": 32})
    assert long.tokens == 60 * 160 + 10 * 320
    assert long.stretches[0].sample == 300
    _, epochs, _ = drawn(long)
    assert set(epochs) == {0}
    assert long.drawn == tuple(16 * a + 32 * b for a, b in zip(short.rows, long.rows, strict=True))
    (_, later) = parts_of({"steps": 95}, {"steps": 20, "sequence_length": 32}, rows=(600, 200))
    assert drawn(later)[1].max() == 1


# --- training


def phased(case: Case, folder: Path, name: str, first: int, until: int) -> Any:
    """Runs steps of a phase, and returns the final weights, the moments, and the step at which the run started.

    Args:
        case: settings, with the number of steps up to the end of the phase.
        folder: folder of the phase's stage.
        name: name of the run.
        first: number of steps of the phases before.
        until: step after which the run is stopped.
    """
    loop = replace(build(case), first_step=first, branch_step=None)
    run_folder = folder / "checkpoints" / name
    ray.train.report = stored(run_folder)
    states = Checkpoints(loop.engine, loop.method, run_folder, sealing(folder, name))
    progress = states.load()
    begun = progress.step
    loop.run(feed(begun, until), progress, lambda _: None, states.save)
    return loop.engine.full_state(), moments(loop.engine), begun


@pytest.mark.parametrize(("world", "zero_stage"), [(1, 0), (2, 2)])
def test_phases_train_like_one_run_with_their_rates(ranks, tmp_path: Path, world: int, zero_stage: int) -> None:
    """A killed second phase goes on from its own checkpoint. Moments and step counts are kept, without a warm-up."""
    store, rates = Store(tmp_path), {"learning_rate": 2e-3, "warmup_steps": 2}
    own = {"schedule": "constant", "checkpoint_interval_steps": 2}
    one = TrainingConfig(**own, **rates, max_steps=4)
    made = stage(one, phase={})
    folder = finished(store, made, 4)
    run = ranks(world).run
    case = Case(zero_stage, steps=4, training={**own, **rates})
    run(phased, case, folder, made.key[:8], 0, 4)
    record = load_record(folder)
    assert record
    second = tmp_path / "train" / "second-34"
    start_from_phase(record, 4, second / "checkpoints" / "run", tmp_path)
    falling = {**own, "schedule": "linear", "learning_rate": 1e-3, "warmup_steps": 0}
    case = Case(zero_stage, steps=9, training=falling)
    assert run(phased, case, second, "run", 4, 7)[0][2] == 4
    start_from_phase(record, 4, second / "checkpoints" / "run", tmp_path)  # it has a checkpoint of its own
    weights, averages, begun = run(phased, case, second, "run", 4, 9)[0]
    assert begun == 7
    expected = reference(Case(steps=9), [1e-3, 2e-3, 2e-3, 2e-3, *(1e-3 * (1 - step / 5) for step in range(5))])
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected.weights[name], rtol=1e-4, atol=3e-5)
    torch.testing.assert_close(averages, expected.moments, rtol=1e-4, atol=1e-6)


def test_a_longer_phase_starts_from_a_shorter_one(ranks, tmp_path: Path) -> None:
    store, own = Store(tmp_path), {"schedule": "constant", "warmup_steps": 0}
    short, long = (TrainingConfig(**own, max_steps=steps) for steps in (3, 6))
    made = stage(short, phase={})
    folder = finished(store, made, 3)
    ranks(1).run(phased, Case(steps=3, training=own), folder, made.key[:8], 0, 3)
    new = tmp_path / "train" / "new-12" / "checkpoints" / "run"
    start_from_branch(stage(long, phase={}), store, long, 6, new)
    assert [state.name for state in checkpoints(new)] == ["step-00000003"]
    other = tmp_path / "train" / "other-12" / "checkpoints" / "run"
    decaying = replace(long, schedule="linear")
    start_from_branch(stage(decaying, phase={}), store, decaying, 6, other)
    assert checkpoints(other) == []


def test_a_phase_without_the_state_before_it_is_refused(ranks, tmp_path: Path) -> None:
    own = TrainingConfig(schedule="constant", max_steps=3)
    made = stage(own, phase={})
    folder = finished(Store(tmp_path), made, 3)
    record = load_record(folder)
    assert record
    new = tmp_path / "train" / "new-12" / "checkpoints" / "run"
    with pytest.raises(StorageError, match="cannot be used: it was removed"):
        start_from_phase(record, 3, new, tmp_path)
    with pytest.raises(DataError, match="the corpus ended after 3 of 4 steps"):
        start_from_phase(record, 4, new, tmp_path)
    ranks(1).run(phased, Case(steps=3), folder, made.key[:8], 0, 3)
    (state,) = (folder / "checkpoints" / made.key[:8]).glob("step-*")
    shutil.copy(state / "state.json", tmp_path / "copy")
    (state / "state.json").write_text((tmp_path / "copy").read_text().replace("3", "4"))
    with pytest.raises(StorageError, match=r"cannot be used: state\.json has other content"):
        start_from_phase(record, 3, new, tmp_path)
