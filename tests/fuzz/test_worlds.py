"""Runs, changes and disturbs worlds (random configurations with their files), and checks properties of all worlds.

The fixed worlds take about a minute. To run more worlds from another seed: make fuzz ARGS="--seed 1000 --minutes 30"
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
"""Number of tests on fixed worlds, and number of worlds per test."""
PATIENCE_S = 180
"""Time limit for one world, which normally takes about a second [s]."""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]


@pytest.mark.parametrize("group", range(GROUPS))
def test_properties_of_all_worlds_hold(group: int, tmp_path: Path, model: Path) -> None:
    with driver.cheap(model):
        for seed in range(group * EACH, (group + 1) * EACH):
            examine(seed, tmp_path / str(seed), model)


@pytest.mark.timeout(0)
def test_properties_hold_for_further_worlds(request: pytest.FixtureRequest, tmp_path: Path, model: Path) -> None:
    """Checks further worlds (random configurations with files), for as long as the arguments of `make fuzz` say.

    If a world hangs, a stack trace is printed and the process ends.
    """
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
def test_a_world_has_the_same_results_on_ray(seed: int, tmp_path: Path, model: Path) -> None:
    one = world(seed)
    one.lay(tmp_path / "data")
    found = []
    for way in (driver.cheap, driver.reading):
        with way(model):
            found.append(results(driver.run(one, tmp_path / "data", tmp_path / way.__name__, model)))
    assert found[0] == found[1]
    assert found[0]


def examine(seed: int, folder: Path, model: Path) -> None:
    """Checks the results of a world, of the same world with random faults, and of the world after one random change.

    Finally deletes the world's folder.
    """
    draw, base, data = Random(f"what happens to world {seed}"), world(seed), folder / "data"
    what = "as it is"
    try:
        base.lay(data)
        ran = driver.run(base, data, folder / "runs", model)
        check(ran)
        expected = results(ran)
        for what in disturbed(draw, base, expected, folder, model):  # noqa: B007 (used in the message)
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
    """Runs a world with a fault and then without it.

    Yields a description of each fault. A run with a fault must end with a message. The run without the fault must give
    the expected results.
    """
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
    if not again.error:  # The lost files were created again.
        same(expected, results(again))


def check(ran: Ran) -> None:
    for one in CHECKS:
        one(ran)


def same(one: Results, other: Results, also_missing: bool = False) -> None:
    """Checks that stages with equal keys have equal results."""
    keys = one.keys() | other.keys() if also_missing else one.keys() & other.keys()
    different = [one.get(key, other.get(key, ""))[0] for key in keys if one.get(key) != other.get(key)]
    assert not different, f"stages of one key with other results: {sorted(different)}"
