"""Tests whether methods, mixtures and objectives declare correctly that early steps depend on the run's length.

A declaration is compared with the state after the same number of steps of a shorter and a longer run.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch

from adapt.config import MixtureConfig, ObjectiveConfig, TrainingConfig
from adapt.corpus.sample_order import Mixture, share_changes
from adapt.method.base import Setting
from adapt.method.table import METHODS
from adapt.objective.masking import DifferenceMasking, make
from adapt.objective.objective import Batch
from adapt.objective.table import OBJECTIVES
from adapt.objective.word_weights import Counts, WordWeights
from adapt.support.errors import ConfigError
from adapt.train.checkpoints.branch import depends_on_length
from adapt.train.engine import Engine
from adapt.train.loop import Loop
from adapt.train.schedule import branch_step, learning_rate
from tests.method.test_every_method import STRONG, kind_of, past, run_of
from tests.method.trained import Trained, prepared
from tests.train.checkpoints.test_branch import WSD, finished, kept, stage, start
from tests.train.checkpoints.test_branch import settings as wsd
from tests.train.checkpoints.test_branch import store as store
from tests.train.toy import GLOBAL_BATCH, Case, Objective, Tokenizer, columns, feed, settings

past = past
SHORT, LONG, BRANCH = 10, 20, 8
KNOWN: dict[str, dict[str, Any]] = {
    **STRONG,
    **{f"{kind} as it is": {} for kind in ("plain", "l2sp", "replay", "one", "joint", "merge")},
    "das": {"importance": "none"},
    "elle without recovery": {**STRONG["elle"], "recovery_fraction": 0.0},
}
"""Options of methods, keyed by a name that begins with the kind of the method."""
DEPENDING = ("average", "elle", "hat", "hat of the model", "cpt")
SOURCES, GENERAL, BATCH = [900], [700], 50


def test_no_method_is_left_out() -> None:
    assert {*map(kind_of, KNOWN)} == {*METHODS}


def states(runs: list[Trained]) -> list[list[torch.Tensor]]:
    """Returns each run's state after BRANCH steps: the weights and the method's state."""
    return [_state(run) for run in runs]


def _state(run: Trained) -> list[torch.Tensor]:
    method, toy = prepared(run)
    training, size = settings(**run.case.training), run.case.micro_batch
    engine = Engine(toy, training, 0, "fp32", size, GLOBAL_BATCH // size, "none")
    method.begin(engine)
    loop = Loop(engine, Objective(), method, training, size, run.case.steps, seed=5)
    for step, share in enumerate(feed(0, BRANCH)):
        loop.step(share, step, learning_rate(training, step, run.case.steps))
    return [value.clone() for _, value in sorted(engine.full_state().items())] + tensors_of(method.state())


def tensors_of(state: Any) -> list[torch.Tensor]:
    """Returns a flat list of all tensors and numbers in a nested state."""
    if isinstance(state, dict):
        return [tensor for _, value in sorted(state.items()) for tensor in tensors_of(value)]
    if isinstance(state, list | tuple):
        return [tensor for value in state for tensor in tensors_of(value)]
    return [state.clone() if torch.is_tensor(state) else torch.tensor(state, dtype=torch.float64)]


@pytest.mark.parametrize("name", KNOWN)
def test_a_methods_declaration_is_true(ranks: Any, past: dict[str, Path], name: str) -> None:
    """A method that declares no dependence on the run's length has equal early states in a short and a long run."""
    if name in STRONG:
        run = run_of(name, past, Case(training=WSD, micro_batch=4))
    elif kind_of(name) == "elle":
        run = replace(run_of("elle", past, Case(training=WSD, micro_batch=4)), options=KNOWN[name])
    else:
        run = Trained(Case(training=WSD, micro_batch=4), kind_of(name), KNOWN[name], room=40)
    short, long = (replace(run, case=replace(run.case, steps=steps)) for steps in (SHORT, LONG))
    found, expected = ranks(1).run(states, [short, long])[0]
    same = len(found) == len(expected) and all(map(torch.equal, found, expected))
    assert same == (name not in DEPENDING)
    chosen = METHODS.load(kind_of(name))
    method = chosen(chosen.Options(**KNOWN[name]) if chosen.Options else None)
    assert method.depends_on_length == (name in DEPENDING)
    assert depends_on_length({"method": method.what()}) == method.depends_on_length


def test_only_a_method_that_declares_it_gets_the_length() -> None:
    with pytest.raises(ConfigError, match="reads the number of training steps") as caught:
        _ = Setting().steps
    assert "depends_on_length = True" in caught.value.fix
    assert Setting(length=7).steps == 7


@pytest.mark.parametrize("kind", ["plain", "average", "hat", "cpt", "elle"])
def test_a_run_whose_steps_depend_on_its_length_uses_no_state(store: Any, kind: str) -> None:
    chosen = METHODS.load(kind)
    method = chosen(chosen.Options() if chosen.Options else None).what()
    kept(finished(store, stage(wsd(max_steps=1000), method=method), 1000), 800)
    assert start(store, wsd(), method=method) == (["step-00000800"] if kind == "plain" else [])


@pytest.mark.parametrize("schedule", get_args(get_type_hints(TrainingConfig)["schedule"]))
def test_only_a_schedule_with_the_same_rates_branches(schedule: Any) -> None:
    training = TrainingConfig(schedule=schedule, warmup_steps=2, cooldown_fraction=0.2)
    at = branch_step(training, SHORT)
    if at is not None:
        rates = [[learning_rate(training, step, steps) for step in range(at)] for steps in (SHORT, LONG)]
        assert rates[0] == rates[1]
    assert (at is not None) == (schedule == "wsd")


MIXTURES: dict[str, MixtureConfig] = {
    "replay": MixtureConfig(replay_paths="x", replay_fraction=0.5),
    "a share that falls": MixtureConfig(replay_paths="x", replay_fraction=0.5, replay_last=0.0),
    "a share that grows": MixtureConfig(replay_paths="x", replay_fraction=0.0, replay_last=0.3),
    "a last share that is the first": MixtureConfig(replay_paths="x", replay_fraction=0.5, replay_last=0.5),
    "in turn": MixtureConfig(replay_paths="x", order="sequential"),
    "with a temperature": MixtureConfig(replay_paths="x", temperature=5.0),
}


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("recalled", [[], [300]])
def test_a_mixture_declares_whether_its_rows_depend_on_the_length(name: str, recalled: list[int]) -> None:
    config, places = MIXTURES[name], np.arange(160 * BATCH)
    runs = [Mixture.of(SOURCES, 1, config, None, GENERAL, recalled, 0.2, samples=steps * BATCH) for steps in (200, 600)]
    short, long = (run.numbers(run.locate(places)) for run in runs)
    assert (not np.array_equal(short, long)) == share_changes(config)


@pytest.mark.parametrize("kind", list(OBJECTIVES))
def test_no_objective_depends_on_the_length(kind: str) -> None:
    """Random choices of an objective depend on the seed, the epoch and the row, but not on earlier rows."""
    tokenizer: Any = Tokenizer()

    def drawn(before: range) -> list[torch.Tensor]:
        objective = make(ObjectiveConfig(kind=kind, mask_fraction=0.4), tokenizer, 3)
        if isinstance(objective, DifferenceMasking):
            words = Counts(np.arange(5, dtype=np.uint64), np.arange(2, 7), 20)
            objective.weights = WordWeights.of(words, words)
        rows = [columns(step) for step in [*before, BRANCH]]
        for each in rows:
            each.update(dict.fromkeys(objective.columns(), each["starts"] | (each["tokens"] % 3 == 0)))
            corrupted = objective.corrupt(Batch.of(each))
        return [corrupted.input_ids, corrupted.positions, corrupted.targets]

    assert all(map(torch.equal, drawn(range(0)), drawn(range(BRANCH))))
