"""Tests training runs in phases: configuration, length, order of text, and resumed phases."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray.train
import torch
import torch.distributed as dist

from adapt.config import Config, CorpusConfig, MethodConfig, PhaseConfig, SourceConfig, TrainingConfig
from adapt.corpus.sample_order import Mixture
from adapt.method.weight_means import AverageOptions
from adapt.model.size import ModelSize
from adapt.objective.objective import Batch
from adapt.runner import Store
from adapt.runner.record import load_record
from adapt.stage.training_plan import RunPart, part_of
from adapt.support.errors import ConfigError, DataError, StorageError
from adapt.train.capacity.flops import training_flops, with_flops_as_steps, workload
from adapt.train.checkpoints.branch import start_from_branch, start_from_phase
from adapt.train.checkpoints.checkpoint import Checkpoints
from adapt.train.checkpoints.stored_checkpoints import checkpoints
from adapt.train.phases import check_phases, check_ramps, phases_of
from adapt.train.schedule import RunLength, learning_rate, length_of, micro_batch, shapes_of, worlds
from tests.train.checkpoints.test_branch import finished, sealing, stage, stored
from tests.train.toy import LENGTH, Case, Objective, build, columns, feed, model, moments, reference

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
    parts: list[RunPart] = []
    for phase in phases_of(config(*phases, **limits)):
        parts.append(part_of(phase.config, lambda _: Mixture.of([10**9], 0), phase, parts[-1] if parts else None))
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
    "replayed files": (
        config({"mixture": {"replay_paths": "x"}}),
        "replay_paths, which must be the same in all phases",
    ),
    "unknown source": (config({"weights": {"c": 1.0}}), "weights has 'c', which is not one of corpus.sources"),
    "no weight": (config({"weights": {"a": 0.0}}), "entry 1: all weights are 0"),
    "a window": (
        replace(config({}), method=MethodConfig("average"), method_options=AverageOptions()),
        r"method\.kind average depends on the length",
    ),
    "other modules": (
        config({"steps": 1}, {"steps": 1, "objective": {"kind": "rtd"}}),
        "has the objectives rtd and mlm, but rtd trains modules that mlm lacks",
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
    with pytest.raises(ConfigError, match="entry 2 is shorter than one step: the run has 10 steps"):
        small.steps(RunLength(10, 10))


# --- order of text


SIZES = {"global_batch_size": 10, "sequence_length": 16}


def mixture_of(config: Config, rows: tuple[int, ...], length: int) -> Mixture:
    """Returns the mixture of two sources with `rows` rows of 16 tokens, and 500 such rows of general text."""
    counts = [round(count * 16 / length) for count in (*rows, 500)]
    weights = [source.weight or 0 for source in config.corpus.sources]
    return Mixture.of(counts[:-1], 3, config.mixture, weights if any(weights) else None, counts[-1:])


def parts_of(*phases: dict[str, Any], rows: tuple[int, ...] = (700, 300)) -> list[RunPart]:
    """Returns the part of the run that belongs to each phase. Batches have 10 rows of 16 tokens."""
    parts: list[RunPart] = []
    for phase in phases_of(config(*phases, **SIZES)):
        mixture_at = partial(mixture_of, phase.config, rows)
        parts.append(part_of(phase.config, mixture_at, phase, parts[-1] if parts else None))
    return parts


def drawn(part: RunPart) -> np.ndarray:
    """Returns source, epoch and row of all samples of a part, int64 [3, samples]."""
    found = [each.mixture.locate(np.arange(each.sample, each.end)) for each in part.stretches]
    return np.concatenate([np.stack(places) for places in found], axis=1)


def counts(part: RunPart) -> list[int]:
    """Returns the number of rows of each source in a part."""
    return [sum(rows) for rows in zip(*(stretch.rows for stretch in part.stretches), strict=True)]


def test_phases_with_one_mixture_continue_the_order_of_a_single_run() -> None:
    parts = parts_of({"steps": 33}, {"steps": 50, "objective": {"mask_fraction": 0.3}}, {"steps": 7})
    whole = parts_of({"steps": 90})
    assert np.array_equal(np.concatenate([drawn(part) for part in parts], axis=1), drawn(whole[0]))
    assert [sum(rows) for rows in zip(*map(counts, parts), strict=True)] == counts(whole[0])


def test_each_source_goes_on_where_the_phase_before_stopped() -> None:
    """The domain makes up 90% of the first phase and the whole second phase.

    No row occurs again before all rows occurred once.
    """
    first, alone = parts_of({"steps": 60}, {"steps": 50, "mixture": {"replay_fraction": 0.0}})
    assert counts(alone)[2] == 0
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
    assert long.drawn == tuple(16 * a + 32 * b for a, b in zip(counts(short), counts(long), strict=True))
    (_, later) = parts_of({"steps": 95}, {"steps": 20, "sequence_length": 32}, rows=(600, 200))
    assert drawn(later)[1].max() == 1


# --- ramps


def ramped(steps: int, rows: tuple[int, ...] = (700, 300), **ramps: Any) -> RunPart:
    """Returns a run with ramps, whose batches at the end have 10 rows of 16 tokens."""
    given = config(**SIZES, max_steps=steps, **ramps)
    return part_of(given, partial(mixture_of, given, rows))


def test_a_batch_ramp_keeps_the_order_of_rows() -> None:
    """Batches have 4 rows up to 200 tokens, then 6 up to 500 tokens, then 10. Rows are in the order of a plain run."""
    part = ramped(9, batch_ramp=[(200, 4), (500, 6)])
    shapes = [(each.first, each.last, each.global_batch_size) for each in part.stretches]
    assert shapes == [(0, 4, 4), (4, 7, 6), (7, 9, 10)]
    assert part.tokens == 16 * (4 * 4 + 3 * 6 + 2 * 10)
    plain = drawn(ramped(6))
    assert np.array_equal(drawn(part), plain[:, : 4 * 4 + 3 * 6 + 2 * 10])


def test_a_length_ramp_goes_on_at_the_same_number_of_tokens() -> None:
    part = ramped(70, length_ramp=[(1600, 4), (3200, 8)])
    shapes = [(each.first, each.last, each.sequence_length, each.sample) for each in part.stretches]
    assert shapes == [(0, 40, 4, 0), (40, 60, 8, 200), (60, 70, 16, 200)]
    assert part.tokens == 1600 + 1600 + 1600
    _, epochs, _ = drawn(part)
    assert epochs.max() == 0


def test_rows_of_a_length_ramp_have_the_numbers_of_one_source() -> None:
    """Masks are drawn by row number, and methods recognise rows of general text by their number."""
    short = mixture_of(config(), (700, 300), 8)
    long = mixture_of(config(), (700, 300), 16).numbered(short.rows)
    assert short.first_general == long.first_general == 2000
    for mixture in (short, long):
        places = mixture.locate(np.arange(300))
        assert np.array_equal(places.sources == 2, mixture.numbers(places) >= 2000)


@pytest.mark.parametrize("limit", [{"max_tokens": 10_000}, {"max_steps": 100}, {"epochs": 1.0}])
def test_the_length_of_a_ramped_run(limit: dict[str, Any]) -> None:
    training = TrainingConfig(**SIZES, **limit, batch_ramp=[(1000, 2), (2000, 5)], length_ramp=[(1500, 8)])
    steps = length_of(training, 625).steps
    before, after = (sum(shape.tokens for shape in shapes_of(training, count)) for count in (steps - 1, steps))
    assert before < 10_000 <= after if "max_steps" not in limit else steps == 100


def test_max_flops_counts_the_lengths_of_a_ramp() -> None:
    size = ModelSize(9999, 1000, 100, 2, 8, 8, 2, 16, 50, False, "gelu", False, 0.0, 400)
    given = Config(training=TrainingConfig(**SIZES, max_flops=1e9, length_ramp=[(1600, 4)]))
    steps = with_flops_as_steps(given, size, None).training.max_steps
    assert steps

    def done(steps: int) -> float:
        shapes = shapes_of(given.training, steps)
        return sum(
            shape.tokens * training_flops(size, workload(given.objective, shape.sequence_length)) for shape in shapes
        )

    assert done(steps - 1) < 1e9 <= done(steps)


WRONG_RAMPS: dict[str, tuple[dict[str, Any], str]] = {
    "tokens": (
        {"batch_ramp": [(200, 2), (100, 4)]},
        r"batch_ramp is \[\[200, 2\], \[100, 4\]\], but its token counts do not increase",
    ),
    "values": (
        {"length_ramp": [(200, 16)]},
        r"its values, with training\.sequence_length 16 at the end, do not increase",
    ),
    "phases": ({"batch_ramp": [(200, 2)], "phases": [PhaseConfig(steps=3)]}, "batch_ramp and training.phases are both"),
}


@pytest.mark.parametrize("case", WRONG_RAMPS)
def test_wrong_ramps_are_refused_by_name(case: str) -> None:
    wrong, message = WRONG_RAMPS[case]
    with pytest.raises(ConfigError, match=message):
        check_ramps(Config(training=TrainingConfig(**SIZES, **wrong)))


def test_a_ramp_beyond_the_run_is_refused() -> None:
    training = TrainingConfig(**SIZES, epochs=1.0, batch_ramp=[(4000, 2)])
    assert length_of(training, 300).steps > 0
    with pytest.raises(
        ConfigError, match=r"batch_ramp goes on until 4,000 tokens, but the run of 50 steps has only 1,6"
    ):
        length_of(training, 100)


def test_workers_and_micro_batches_divide_all_batches_of_a_ramp() -> None:
    training = TrainingConfig(global_batch_size=24, batch_ramp=[(100, 8), (200, 12)])
    assert micro_batch(training, 2) == (2, 6)
    assert worlds(training, (1, 4)) == [1, 2, 4]
    with pytest.raises(ConfigError, match=r"training\.batch_ramp: 8 is no multiple of resources\.workers 3"):
        worlds(training, 3)


def grown(case: Case) -> Any:
    """Trains on batches of 4, 4, 8 and 8 rows, and returns the weights and the moments."""
    loop = build(case)
    sizes = [4, 4, 8, 8]
    rank, world = dist.get_rank(), dist.get_world_size()
    for step, size in enumerate(sizes):
        share = {name: rows[:size] for name, rows in columns(step).items()}
        own = {name: rows[rank * size // world : (rank + 1) * size // world] for name, rows in share.items()}
        loop.step(own, step, 1e-3)
    return loop.engine.full_state(), moments(loop.engine)


@pytest.mark.parametrize(("world", "zero_stage"), [(1, 0), (2, 2)])
def test_batches_that_grow_train_like_plain_torch(ranks, world: int, zero_stage: int) -> None:
    """The loss of a step is the mean over its own batch, whatever the number of passes."""
    training = {"batch_ramp": [(8 * LENGTH, 4)]}
    weights, averages = ranks(world).run(grown, Case(zero_stage, micro_batch=2, training=training))[0]
    toy, masking = model(), Objective()
    trained = dict(toy.named_parameters())
    groups = [{"params": [p], "weight_decay": 0.1 if p.ndim > 1 else 0.0} for p in trained.values()]
    adamw = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), eps=1e-5, foreach=False)
    for step, size in enumerate([4, 4, 8, 8]):
        seen = masking.corrupt(Batch.of({name: rows[:size] for name, rows in columns(step).items()}))
        logits = toy(input_ids=seen.input_ids, attention_mask=seen.real).logits[seen.positions]
        adamw.zero_grad()
        torch.nn.functional.cross_entropy(logits, seen.targets).backward()
        toy.unused.grad = torch.zeros_like(toy.unused)
        torch.nn.utils.clip_grad_norm_(toy.parameters(), 0.5)
        adamw.step()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, toy.state_dict()[name], rtol=1e-4, atol=3e-5)
    expected = {name: (adamw.state[p]["exp_avg"], adamw.state[p]["exp_avg_sq"]) for name, p in trained.items()}
    torch.testing.assert_close(averages, expected, rtol=1e-4, atol=1e-6)


# --- training


def phased(case: Case, folder: Path, name: str, first: int, until: int) -> Any:
    """Runs steps of a phase, and returns the final weights, the moments, and the step at which the run started.

    Args:
        case: settings, with the number of steps up to the end of the phase.
        folder: folder of the phase's stage.
        name: name of the run.
        first: number of steps of the previous phases.
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
    """A killed second phase continues from its own checkpoint, with its moments and step counts, without a warm-up."""
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
    start_from_phase(record, 4, second / "checkpoints" / "run", tmp_path)  # the phase has its own checkpoint
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
