"""Keeps Ray and Hugging Face quiet and offline in every test and in the processes that tests start."""

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from tests.samples import save_tiny_bert
from tests.train.ranks import Ranks

os.environ["HF_HUB_OFFLINE"] = "1"
# Small models are slower on several threads. Torch reads this variable when it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # Threads that spin while they wait slow down all other processes.
os.environ.pop("TOKENIZERS_PARALLELISM", None)

gc.disable()  # Garbage collection is off during the imports: it would free nothing there and take a fifth of the time.

HEAVY = {"ray_cluster", "ranks", "jobs"}
"""Fixtures that start processes. Tests that use them are left out of `make quick`."""
LONGER_FILE = Path(__file__).with_name("longer.txt")
"""Test functions that `make quick` leaves out: they take longer than LONGER_S. `make longer` writes this file."""
LONGER_S = 0.04
_seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
"""Time of each test, keyed by its function and its id."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--note-longer", action="store_true", help=f"write the tests over {LONGER_S} s to {LONGER_FILE}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid.partition("[")[0]][report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not session.config.getoption("note_longer") or hasattr(session.config, "workerinput"):
        return
    functions = defaultdict(list)
    for function, seconds in sorted(_seconds.items()):
        if sum(seconds.values()) / len(seconds) > LONGER_S:
            file, _, name = function.partition("::")
            functions[file].append(f"    {name}\n")
    LONGER_FILE.write_text("".join(f"{file}\n{''.join(names)}" for file, names in functions.items()))


def longer() -> set[str]:
    """Reads LONGER_FILE and returns the ids of its test functions."""
    found, file = set(), ""
    for line in LONGER_FILE.read_text().splitlines():
        if line.startswith(" "):
            found.add(f"{file}::{line.strip()}")
        else:
            file = line
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    left_out = longer()
    for item in items:
        if HEAVY & {*getattr(item, "fixturenames", ())}:
            item.add_marker("heavy")
        if item.nodeid.partition("[")[0] in left_out:
            item.add_marker("longer")
    # Slow tests are left out of coverage: measuring it takes long, and most of their code runs in other processes.
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("heavy"):
            item.add_marker("no_cover")
    # Files with slow tests run first, then files with heavy tests. Otherwise, a slow file may run alone at the end.
    places = {mark: {item.path for item in items if item.get_closest_marker(mark)} for mark in ("slow", "heavy")}
    items.sort(key=lambda item: (item.path not in places["slow"], item.path not in places["heavy"]))


def pytest_collection_finish() -> None:
    gc.freeze()  # Imported objects are never freed, so they are hidden from the garbage collector.
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails a test that starts Ray and is not marked heavy. Starting Ray takes longer than a hundred light tests."""
    before = _has_ray()
    yield
    is_light = not (item.get_closest_marker("slow") or item.get_closest_marker("heavy"))
    assert before or not is_light or not _has_ray(), "this test starts Ray: mark it heavy"


def _has_ray() -> bool:
    """Returns whether this process has started or joined Ray.

    Reads a private object of Ray, because tests replace `ray.is_initialized`.
    """
    worker = sys.modules.get("ray._private.worker")
    return worker is not None and worker.global_worker.connected


# Examples have no deadline, because slow or busy machines would exceed it.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a read-only folder with a random BERT for 128 tokens (30,000 parameters) and a WordPiece tokenizer."""
    return save_tiny_bert(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Starts Ray on this machine with 2 CPUs, for all tests that need Ray. Ray's workers and agents are forked."""
    import ray

    from adapt.config import ResourcesConfig
    from adapt.ray.connection import OWN_RAY, remove
    from adapt.ray.runtime import connect
    from tests.forks.process import with_forked_workers

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setattr(ray, "init", partial(ray.init, num_cpus=2))
        with_forked_workers(patch)
        connect(ResourcesConfig())
    folder = Path(os.environ[OWN_RAY])
    yield
    ray.shutdown()
    remove(folder)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], Ranks]]:
    """Yields a function that returns a running group with the given number of ranks."""
    groups: dict[int, Ranks] = {}
    yield lambda world: groups.setdefault(world, Ranks(world))
    for group in groups.values():
        group.stop()
