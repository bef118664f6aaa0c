"""Worlds at random, each run, changed and disturbed, against what has to hold of all of them.

The fixed ones take about a minute. More, from another seed on: make fuzz ARGS="--seed 1000 --minutes 30"
"""

import faulthandler
import shutil
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import driver
from tests.fuzz.change import HOW, changed, field_of
from tests.fuzz.driver import Ran
from tests.fuzz.faults import Killed, fault, lose
from tests.fuzz.grammar import World, world
from tests.fuzz.invariants import (
    Results,
    check_counts,
    check_error,
    check_leaks,
    check_special,
    check_training,
    results,
)

CHECKS = (check_error, check_counts, check_special, check_training, check_leaks)
GROUPS, EACH = 4, 8
"""Fixed worlds: so many tests, and worlds in each."""
PATIENCE_S = 180
"""For one world, which takes a second."""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]


@pytest.mark.parametrize("group", range(GROUPS))
def test_what_has_to_hold_of_every_world_holds(group: int, tmp_path: Path, model: Path) -> None:
    with driver.cheap(model):
        for seed in range(group * EACH, (group + 1) * EACH):
            examine(seed, tmp_path / str(seed), model)


@pytest.mark.timeout(0)
def test_it_holds_of_further_worlds(request: pytest.FixtureRequest, tmp_path: Path, model: Path) -> None:
    """The longer form; see `make fuzz`. A world that does not end shows where it stands, and ends all."""
    minutes = request.config.getoption("--minutes", None)
    if minutes is None:
        pytest.skip("asked for by make fuzz")
    end = time.monotonic() + 60 * minutes
    with driver.cheap(model):
        for seed in count(request.config.getoption("--seed")):
            faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
            examine(seed, tmp_path / str(seed), model)
            faulthandler.cancel_dump_traceback_later()
            if time.monotonic() >= end:
                return


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_on_ray_a_world_has_the_same_results(seed: int, tmp_path: Path, model: Path) -> None:
    one = world(seed)
    one.lay(tmp_path / "data")
    found = []
    for way in (driver.cheap, driver.reading):
        with way(model):
            found.append(results(driver.run(one, tmp_path / "data", tmp_path / way.__name__, model)))
    assert found[0] == found[1]
    assert found[0]


def examine(seed: int, folder: Path, model: Path) -> None:
    """One world, and what one fault and one change make of it. The folder is gone afterwards."""
    draw, base, data = Random(f"what happens to world {seed}"), world(seed), folder / "data"
    what = "as it is"
    try:
        base.lay(data)
        ran = driver.run(base, data, folder / "runs", model)
        check(ran)
        expected = results(ran)
        for what in disturbed(draw, base, expected, folder, model):  # noqa: B007 for the note
            pass
        what, other = changed(draw, base)
        other.lay(data)
        after = driver.run(other, data, folder / "changed", model, folder / "runs")
        check(after)
        same(expected, results(after))
        if field_of(what) in HOW and ran.last and after.last:
            assert set(ran.stages) == set(after.stages), "a field that says how changes a key"
    except BaseException as error:
        error.add_note(f"world {seed}, {base.kind}, {what}; again: make fuzz ARGS='--seed {seed} --minutes 0'")
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def disturbed(draw: Random, base: World, expected: Results, folder: Path, model: Path) -> Iterator[str]:
    """A fault ends with a message, and without it the same command ends as if there had been none."""
    data, root = folder / "data", folder / "disturbed"
    with fault(draw, data, root) as what:
        yield what
        broken = driver.run(base, data, root, model)
    if not isinstance(broken.error, Killed):
        check_error(broken)
    base.lay(data)
    mended = driver.run(base, data, root, model)
    check_error(mended)
    same(expected, results(mended), also_missing=True)
    yield lose(draw, mended)
    again = driver.run(base, data, root, model)
    check_error(again)
    if not again.error:  # then what was lost was made again
        same(expected, results(again))


def check(ran: Ran) -> None:
    for one in CHECKS:
        one(ran)


def same(one: Results, other: Results, also_missing: bool = False) -> None:
    """Of one key there is one result."""
    keys = one.keys() | other.keys() if also_missing else one.keys() & other.keys()
    different = [one.get(key, other.get(key, ""))[0] for key in keys if one.get(key) != other.get(key)]
    assert not different, f"stages of one key with other results: {sorted(different)}"
