"""What a plan says of each stage: whether it is done, and if not, what is unlike the last run."""

from dataclasses import replace
from pathlib import Path

import pytest

from adapt.errors import DataError
from adapt.runner import Done, Outcome, Store, ensure, plan_stages
from tests.runner import toys
from tests.runner.toys import Toy, ToyResult, part, ran, single, states


def test_a_plan_lists_every_stage_once_inputs_first(store: Store, runs: Path) -> None:
    planned = plan_stages(toys.diamond(runs), store)
    assert [line.stage.kind for line in planned] == ["source", "left", "right", "top"]
    assert all(line.record is None and line.nearest is None and line.changed == [] for line in planned)
    assert [line.folder for line in planned] == [
        store.folder(line.stage.kind, "toy", line.stage.key) for line in planned
    ]
    assert ran(runs) == []
    assert not store.root.exists()  # looking leaves no trace


def test_a_plan_tells_done_from_to_do(store: Store, runs: Path) -> None:
    top = toys.diamond(runs)
    ensure(top.inputs["left"], store)
    assert states(top, store) == {"source": "done", "left": "done", "right": [], "top": []}
    ensure(top, store)
    assert states(top, store) == dict.fromkeys(toys.NAMES, "done")


def test_a_plan_is_what_then_runs(store: Store, runs: Path) -> None:
    ensure(toys.diamond(runs).inputs["left"], store)
    ran(runs)
    expected = [line.stage.kind for line in plan_stages(toys.diamond(runs), store) if not line.record]
    ensure(toys.diamond(runs), store)
    assert ran(runs) == expected


def test_a_plan_says_which_field_and_which_input_changed(store: Store, runs: Path) -> None:
    def chain(rate: float) -> Toy:
        top = toys.diamond(runs)
        return replace(top, left=replace(part(top, "left"), settings={"train": {"rate": rate}}))

    first, second = chain(0.5), chain(0.25)
    done = ensure(first, store).record
    old, new = first.inputs["left"].key[:8], second.inputs["left"].key[:8]
    assert states(second, store) == {
        "source": "done",
        "left": ["train.rate: 0.5 -> 0.25"],
        "right": "done",
        "top": [f"input left: {old}… -> {new}…"],
    }
    assert plan_stages(second, store)[-1].nearest == done


def test_a_plan_says_that_an_input_is_new(store: Store, runs: Path) -> None:
    top = toys.diamond(runs)
    less = replace(top, right=None, act=toys.idle)
    ensure(less, store)
    ensure(top.inputs["right"], store)
    assert states(top, store)["top"] == [f"input right: (not there) -> {top.inputs['right'].key[:8]}…"]


def test_a_plan_says_that_the_version_changed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure(single(rate=1), store)
    monkeypatch.setattr(Toy, "version", 2)
    assert states(single(rate=1), store) == {"toy": ["version of the stage's code: 1 -> 2"]}


def test_a_plan_compares_with_the_stage_that_is_most_alike(store: Store) -> None:
    for name, rate, seed in (("a", 1, 1), ("b", 2, 0), ("c", 3, 3)):
        ensure(single(name=name, rate=rate, seed=seed), store)
    (line,) = plan_stages(single(name="d", rate=2, seed=5), store)
    assert (line.nearest and line.nearest.name, line.changed) == ("b", ["seed: 0 -> 5"])


def test_a_half_done_stage_is_not_compared_with(store: Store) -> None:
    def fail(folder: Path, done: Done) -> Outcome[ToyResult]:
        raise DataError("no")

    with pytest.raises(DataError):
        ensure(single(fail, rate=1), store)
    (line,) = plan_stages(single(rate=2), store)
    assert (line.record, line.nearest) == (None, None)
