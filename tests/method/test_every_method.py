"""Tests that every training method is independent of ranks and ZeRO stages, resumes exactly, and can be turned off."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from adapt.method.elle.method import TEXT
from adapt.method.lora.method import MOMENTS_FILE
from adapt.method.lora.variants import shared_inputs
from adapt.method.table import METHODS
from adapt.method.weight_pulls import FISHER_FILE
from tests.method.elle.test_past_text import text_folder
from tests.method.trained import BEFORE, Outcome, Trained, assert_close, assert_equal, train_all
from tests.train.toy import Case, model

STRONG: dict[str, dict[str, Any]] = {
    "ewc": {"strength": 50.0},
    "distill": {"weight": 2.0},
    "distill of states": {"weight": 20.0, "of": "states"},
    "interpolate": {"share": 0.7},
    "average": {"window": 0.7, "points": 3},
    "freeze": {"layers": 1},
    "freeze all but the module": {"all_but_module": True},
    "expand": {"every": 1},
    "lora": {"rank": 2},
    "lora as dora": {"rank": 2, "kind": "dora"},
    "lora as osf": {"rank": 2, "kind": "osf"},
    "lora as corda": {"rank": 2, "kind": "corda"},
    "derpp": {"alpha": 3.0, "beta": 1.0, "fraction": 0.5},
    "elle": {"layers": [1], "heads": [1], "recovery_fraction": 0.3, "replay_fraction": 0.5, "prompt_length": 2},
    "adapters": {"width": 3},
    "hat": {"width": 6},
    "hat of the model": {"on": "model"},
    "cpt": {"width": 6},
    "demix": {},
    "prefix": {"length": 3},
    "prompt": {"length": 2},
    "prompt for all": {"length": 2, "per_domain": False},
}
"""Options with which each method has a strong effect. The first word of a key is the method's name."""
OFF: dict[str, dict[str, Any]] = {
    "ewc": {"strength": 0.0},
    "distill": {"weight": 0.0},
    "interpolate": {"share": 1.0},
    "average": {"points": 1},
    "freeze": {"embeddings": False, "layers": 0},
    "derpp": {"alpha": 0.0, "beta": 0.0, "fraction": 0.01},
    "elle": {"layers": [], "heads": [], "recovery_fraction": 0.0, "replay_fraction": 0.0, "prompt_length": 0},
}
"""Options with which a method trains exactly like plain training."""
SECOND = ("hat", "cpt", "elle")
"""Methods that are tested on a second domain, because they protect or reuse units or prompts of a first domain."""
ROOM = {"prompt": 2, "elle": 2}
"""Number of extra positions that the model needs for a method's prompts."""
ELSEWHERE = ("plain", "das", "l2sp", "replay", "one", "joint", "merge")
"""Methods that this file does not test: plain training, methods that only choose text, and methods tested elsewhere."""


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Writes random results of earlier stages and the text of two domains, and returns their folders by name."""
    texts = {f"{TEXT}{number}": text_folder(tmp_path_factory.mktemp("text"), number) for number in (1, 2)}
    folder, draw = tmp_path_factory.mktemp("fisher"), torch.Generator().manual_seed(0)
    fisher = {name: torch.rand(each.shape, generator=draw) for name, each in model().named_parameters()}
    save_file(fisher, folder / FISHER_FILE, {"domains": "1"})
    moments, rows = tmp_path_factory.mktemp("moments"), torch.Generator().manual_seed(1)
    widths = {name: model().get_submodule(name).in_features for name in shared_inputs(model()).values()}
    seen = {name: torch.randn(9, width, generator=rows) for name, width in widths.items()}
    save_file({name: each.T @ each for name, each in seen.items()}, moments / MOMENTS_FILE, {"domains": "1"})
    return {"fisher": folder, "moments": moments, **texts}


def run_of(name: str, past: dict[str, Path], case: Case, **options: Any) -> Trained:
    """Describes a training run with a method.

    The anchor (the weights that a method pulls towards or distils from) differs from the initial weights. Otherwise,
    such a method would have no effect on the first step.
    """
    is_second, has_module = kind_of(name) in SECOND, "module" in name
    kind, given = kind_of(name), STRONG[name] | options
    return Trained(case, kind, given, past, BEFORE, is_second, has_module, ROOM.get(kind, 0))


def stages_of(name: str) -> tuple[int, ...]:
    chosen = METHODS.load(kind_of(name))
    return chosen(chosen.Options(**STRONG[name]) if chosen.Options else None).zero_stages


def kind_of(name: str) -> str:
    return name.split()[0]


def test_every_method_is_listed() -> None:
    assert {*map(kind_of, STRONG), *ELSEWHERE} == {*METHODS}


@pytest.fixture(scope="module")
def plain(ranks: Any) -> Outcome:
    """Returns the outcome of plain training on one rank."""
    return ranks(1).run(train_all, [Trained(Case(), "plain")])[0][0]


@pytest.mark.parametrize("name", STRONG)
def test_zero_stages_and_ranks_do_not_change_the_result(
    ranks: Any, past: dict[str, Path], plain: Outcome, name: str
) -> None:
    stages = stages_of(name)
    (expected,) = ranks(1).run(train_all, [run_of(name, past, Case())])[0]
    # ELLE's grown model has further parameters, which are not compared
    both = plain.weights.keys() & expected.weights.keys()
    assert any(not torch.equal(expected.weights[name], plain.weights[name]) for name in both)
    cases = [Case(stage, micro_batch=size) for stage in stages for size in ((4, 2) if stage == 0 else (2,))]
    for found in ranks(2).run(train_all, [run_of(name, past, case) for case in cases])[0]:
        assert_close(found, expected)


@pytest.mark.parametrize("name", STRONG)
def test_resuming_does_not_change_the_result(ranks: Any, past: dict[str, Path], name: str, tmp_path: Path) -> None:
    """Checks that a resumed run equals an uninterrupted run exactly, at the method's first and last ZeRO stage."""
    stages = stages_of(name)
    whole = [Case(stage, dropout=0.1) for stage in {stages[0]: 0, stages[-1]: 0}]
    folders = [tmp_path / str(case.zero_stage) for case in whole]
    for folder in folders:
        folder.mkdir()
    pairs = list(zip(whole, folders, strict=True))
    cases = [replace(case, save=folder, save_after=2) for case, folder in pairs]
    cases += [replace(case, load=folder) for case, folder in pairs]
    found = ranks(2).run(train_all, [run_of(name, past, case) for case in cases])[0]
    for expected, rest in zip(found[: len(whole)], found[len(whole) :], strict=True):
        assert_equal(rest, expected)


@pytest.mark.parametrize("name", OFF)
def test_a_method_that_is_off_is_plain_training(ranks: Any, past: dict[str, Path], name: str) -> None:
    """Checks that a method that is off equals plain training exactly, in fp32 and in fp16, where the loss is scaled."""
    cases = [Case(stage, dropout=0.1, precision=precision) for stage, precision in ((0, "fp32"), (2, "fp16"))]
    offs = [replace(run_of(name, past, case, **OFF[name]), is_second=False, room=0) for case in cases]
    runs = [each for case, off in zip(cases, offs, strict=True) for each in (Trained(case, "plain"), off)]
    found = ranks(2).run(train_all, runs)[0]
    for plain, off in zip(found[::2], found[1::2], strict=True):
        assert_equal(off, plain)
