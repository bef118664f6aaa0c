"""Tests the runner with toy stages: which stages run, in which order they run, and what remains after failures."""

import _thread
import errno
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from adapt.runner import Done, Outcome, Stage, Store, ensure, ensure_all, plan_stages, stage
from adapt.runner.ensure import unfinished
from adapt.support.errors import DataError, StageError, StorageError
from adapt.support.versions import TRIED
from tests.runner import toys
from tests.runner.toys import Toy, ToyResult, content, part, ran, single, states


def test_inputs_run_first_and_once(store: Store, runs: Path) -> None:
    finished = ensure(toys.diamond(runs), store)
    assert ran(runs) == ["source", "left", "right", "top"]
    # the stages `left` and `right` wrote 8 lines each, and each read the 8 lines of `source`
    assert finished.result == ToyResult(lines=32)
    assert finished.record.metrics["lines"] == 32
    assert content(finished.path) == toys.expected("top")


def test_a_second_run_runs_nothing_and_has_the_same_record(store: Store, runs: Path) -> None:
    first = ensure(toys.diamond(runs), store)
    ran(runs)
    assert ensure(toys.diamond(runs), Store(store.root)) == first
    assert ran(runs) == []


def test_untested_versions_are_logged_once_before_any_stage_runs(
    store: Store, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TRIED, "ray", "2.1.0")
    stage.say_untried.cache_clear()
    ensure(toys.diamond(runs), store)
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("not tested with Ray ")
    assert "(tested: 2.1); dontstop doctor says what to install" in first
    ensure(single(lambda *_: Outcome(ToyResult()), rate=0.2), store)
    ensure(toys.diamond(runs), store)
    assert "not tested" not in f"{others} {capsys.readouterr().err}"
    stage.say_untried.cache_clear()


def test_the_record_is_written_after_everything_else(store: Store) -> None:
    seen = []

    def run(folder: Path, done: Done) -> Outcome[ToyResult]:
        (folder / "deep").mkdir()
        (folder / "deep" / "output").write_text("seven b")
        seen.append((folder / "stage.json").exists())
        return Outcome(ToyResult(loss=1.5), {"tokens": 3}, {"workers": 2})

    finished = ensure(single(run, rate=0.1), store)
    assert seen == [False]
    written = json.loads((finished.path / "stage.json").read_text())
    assert written["outputs"] == {"deep/output": 7}
    assert (written["stage"], written["name"], written["version"]) == ("toy", "toy", 1)
    assert (written["what"], written["metrics"]) == ({"rate": 0.1}, {"lines": 0, "found": [], "loss": 1.5})
    assert (written["cost"]["tokens"], written["resources"]["workers"]) == (3, 2)
    assert written["cost"]["seconds"] >= 0
    assert written["packages"]["python"] == sys.version.split()[0]


def test_a_folder_is_tidied_after_its_record_is_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def tidy(stage: Toy, folder: Path) -> None:
        seen.append((folder / "stage.json").exists())

    def broken(folder: Path, done: Done) -> Outcome[ToyResult]:
        raise DataError("broken", "mend it")

    monkeypatch.setattr(Toy, "tidy", tidy)
    with pytest.raises(DataError):
        ensure(single(broken, rate=0.1), store)
    assert seen == []
    for _ in range(2):  # a finished stage is not run again, and its folder is not cleaned again
        ensure(single(rate=0.1), store)
    assert seen == [True]


def test_a_record_names_its_inputs(store: Store, runs: Path) -> None:
    stage = toys.diamond(runs)
    record = ensure(stage, store).record
    left = record.inputs["left"]
    assert set(record.inputs) == {"left", "right"}
    assert (left["stage"], left["key"]) == ("left", stage.inputs["left"].key)
    assert content(Path(left["path"])) == toys.expected("left")


def test_a_failed_stage_keeps_its_folder_and_has_no_record(store: Store, runs: Path) -> None:
    def run(folder: Path, done: Done) -> Outcome[ToyResult]:
        found = sorted(file.name for file in folder.iterdir())
        (folder / "half").write_text("")
        if not found:
            raise DataError("the text is broken")
        return Outcome(ToyResult(found=found))

    top = replace(toys.diamond(runs), act=run)
    with pytest.raises(DataError, match="the text is broken"):
        ensure(top, store)
    assert ran(runs) == ["source", "left", "right"]
    folder = store.folder("top", "toy", top.key)
    assert [file.name for file in folder.iterdir()] == ["half"]
    assert store.find("top", "toy", top.key) is None
    assert ensure(top, store).result.found == ["half"]  # the next run keeps the files of the failed run
    assert ran(runs) == []  # the finished inputs do not run again


def test_a_failed_input_stops_the_stages_that_depend_on_it(store: Store, runs: Path) -> None:
    def fail(folder: Path, done: Done) -> Outcome[ToyResult]:
        raise KeyError("bug")

    top = toys.diamond(runs)
    broken = replace(top, left=replace(part(top, "left"), act=fail))
    with pytest.raises(KeyError):
        ensure(broken, store)
    assert ran(runs) == ["source"]
    assert not (store.root / "top").exists()


@pytest.mark.parametrize(
    ("code", "message"), [(errno.ENOSPC, "no space left while writing"), (errno.EACCES, "cannot write")]
)
def test_a_stage_that_cannot_write_names_its_folder(store: Store, code: int, message: str) -> None:
    def run(folder: Path, done: Done) -> Outcome[ToyResult]:
        raise OSError(code, "refused")

    stage = single(run)
    with pytest.raises(StorageError, match=f"{message} {store.folder('toy', 'toy', stage.key)}"):
        ensure(stage, store)


def test_a_stage_whose_record_cannot_be_written_stays_unfinished(
    store: Store, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    stage = single(lambda folder, done: Outcome(ToyResult((folder / "out").write_text("done"))))
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        with pytest.raises(StorageError, match=r"stage\.json"):
            ensure(stage, store)
    assert store.find("toy", "toy", stage.key) is None
    assert [file.name for file in store.folder("toy", "toy", stage.key).iterdir()] == ["out"]
    assert ensure(stage, store).record.outputs == {"out": 4}


def test_an_unreadable_record_stops_the_run_and_names_its_folder(store: Store) -> None:
    folder = ensure(single(), store).path
    (folder / "stage.json").write_text('{"stage": "toy"')
    for look in (ensure, plan_stages):
        with pytest.raises(StageError, match=f"{folder}/stage.json cannot be read"):
            look(single(), store)


def test_a_new_version_runs_again_and_keeps_the_old_results(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    old = ensure(single(), store).record
    monkeypatch.setattr(Toy, "version", 2)
    new = ensure(single(), store).record
    assert (old.version, new.version) == (1, 2)
    assert old.path != new.path
    assert (old.path / "stage.json").exists()


def test_a_change_reruns_only_the_stages_downstream(store: Store, runs: Path) -> None:
    def chain(rate: float) -> Toy:
        top = toys.diamond(runs)
        return replace(top, left=replace(part(top, "left"), settings={"rate": rate}))

    ensure(chain(1.0), store)
    ran(runs)
    ensure(chain(2.0), store)
    assert ran(runs) == ["left", "top"]
    ensure(chain(1.0), store)  # the results of the first chain still exist
    assert ran(runs) == []


def test_a_stage_with_a_new_name_is_still_finished(store: Store, runs: Path) -> None:
    first = ensure(toys.diamond(runs), store)
    ran(runs)
    assert ensure(toys.diamond(runs, name="renamed"), store).path == first.path
    assert ran(runs) == []


def test_stages_in_a_moved_store_are_still_finished(store: Store, runs: Path, tmp_path: Path) -> None:
    ensure(toys.diamond(runs), store)
    ran(runs)
    store.root.rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    for root in (tmp_path / "moved", tmp_path / "link"):
        finished = ensure(toys.diamond(runs), Store(root))
        assert finished.path.parent == root / "top"
        assert content(finished.path) == toys.expected("top")
    assert ran(runs) == []


def test_a_plan_lists_every_stage_once_inputs_first(store: Store, runs: Path) -> None:
    planned = plan_stages(toys.diamond(runs), store)
    assert [line.stage.kind for line in planned] == ["source", "left", "right", "top"]
    assert all(line.record is None and line.nearest is None and line.changed == [] for line in planned)
    assert [line.folder for line in planned] == [
        store.folder(line.stage.kind, "toy", line.stage.key) for line in planned
    ]
    assert ran(runs) == []
    assert not store.root.exists()  # planning writes no files


def test_a_plan_says_which_stages_are_finished(store: Store, runs: Path) -> None:
    top = toys.diamond(runs)
    ensure(top.inputs["left"], store)
    assert states(top, store) == {"source": "done", "left": "done", "right": [], "top": []}
    ensure(top, store)
    assert states(top, store) == dict.fromkeys(toys.NAMES, "done")


def test_the_planned_stages_are_those_that_run(store: Store, runs: Path) -> None:
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


def test_a_plan_compares_with_the_most_similar_stage(store: Store) -> None:
    for name, rate, seed in (("a", 1, 1), ("b", 2, 0), ("c", 3, 3)):
        ensure(single(name=name, rate=rate, seed=seed), store)
    (line,) = plan_stages(single(name="d", rate=2, seed=5), store)
    assert (line.nearest and line.nearest.name, line.changed) == ("b", ["seed: 0 -> 5"])


def test_a_plan_ignores_unfinished_stages_for_comparison(store: Store) -> None:
    def fail(folder: Path, done: Done) -> Outcome[ToyResult]:
        raise DataError("no")

    with pytest.raises(DataError):
        ensure(single(fail, rate=1), store)
    (line,) = plan_stages(single(rate=2), store)
    assert (line.record, line.nearest) == (None, None)


PATIENCE_S = 600


@dataclass(frozen=True)
class Called:
    """Result of a stage in these tests: the stage's name."""

    name: str


@dataclass(frozen=True, eq=False)
class Waiting(Stage[Called]):
    """A stage whose work is a function that the test provides."""

    kind = "toy"

    name: str
    act: Callable[[Done], None]
    """Function that does the stage's work."""
    reads: tuple[Stage[Called], ...] = ()
    room: Mapping[str, float] | None = None

    def what(self) -> Mapping[str, Any]:
        return {"name": self.name}

    def needs(self) -> Mapping[str, float] | None:
        return self.room

    def run(self, folder: Path, done: Done) -> Outcome[Called]:
        self.act(done)
        return Outcome(Called(self.name))


class Watched:
    """Creates stages that record in which order they run, and which of them run at the same time."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.at_once: list[set[str]] = []
        self._running: set[str] = set()
        self._lock = threading.Lock()

    def stage(
        self,
        name: str,
        *inputs: Waiting,
        needs: Mapping[str, float] | None = None,
        meet: threading.Barrier | None = None,
        error: Exception | None = None,
    ) -> Waiting:
        def act(done: Done) -> None:
            assert set(done.records) == {each.key for each in inputs}
            assert [done[each].result.name for each in inputs] == [each.name for each in inputs]
            with self._lock:
                self.order.append(name)
                self._running.add(name)
                self.at_once.append(set(self._running))
            if meet:
                meet.wait(PATIENCE_S)  # raises an error unless the other stages run at the same time
            with self._lock:
                self._running.remove(name)
            if error:
                raise error

        return Waiting(name, act, inputs, needs)


ONE = {"CPU": 1.0}


def test_independent_stages_run_at_the_same_time(store: Store) -> None:
    watched, meet = Watched(), threading.Barrier(3)
    stages = [watched.stage(name, needs=ONE, meet=meet) for name in "abc"]
    records = ensure_all(stages, store, {"CPU": 3}, 10)
    assert [record.metrics["name"] for record in records] == ["a", "b", "c"]


def test_inputs_come_first_and_run_once(store: Store) -> None:
    watched = Watched()
    first = watched.stage("first", needs=ONE)
    middle = [watched.stage(name, first, needs=ONE) for name in ("left", "right")]
    last = watched.stage("last", *middle, needs=ONE)
    ensure_all([last, first], store, {"CPU": 4}, 10)
    assert watched.order[0] == "first"
    assert watched.order[-1] == "last"
    assert sorted(watched.order) == ["first", "last", "left", "right"]


@pytest.mark.parametrize(
    ("capacity", "most", "widest"),
    [({"CPU": 2.0}, 10, 2), ({"CPU": 0.5}, 10, 1), (None, 3, 3), ({"CPU": 100.0}, 1, 1), ({"CPU": 100.0}, 4, 4)],
)
def test_no_more_stages_run_at_once_than_the_cluster_has_room_for(
    store: Store, capacity: dict[str, float] | None, most: int, widest: int
) -> None:
    watched = Watched()
    meet = threading.Barrier(widest)
    stages = [watched.stage(f"{number}", needs=ONE, meet=meet) for number in range(2 * widest)]
    ensure_all(stages, store, capacity, most)
    assert max(map(len, watched.at_once)) == widest


def test_a_stage_without_needs_runs_alone(store: Store) -> None:
    watched = Watched()
    stages = [watched.stage("a", needs=ONE), watched.stage("all"), watched.stage("b", needs=ONE)]
    ensure_all(stages, store, {"CPU": 9}, 9)
    assert not [together for together in watched.at_once if "all" in together and len(together) > 1]


def test_finished_stages_are_not_run_and_their_inputs_not_checked(store: Store) -> None:
    watched = Watched()
    ensure_all([watched.stage("last", watched.stage("first"))], store, None, 1)
    again = Watched()
    stage = again.stage("last", again.stage("first"))
    assert unfinished([stage], store)[0] == []
    assert ensure_all([stage], store, None, 1)[0].metrics == {"name": "last"}
    assert again.order == []


def test_a_failure_stops_only_dependent_stages(store: Store) -> None:
    watched = Watched()
    broken = watched.stage("broken", needs=ONE, error=DataError("no text", "bring some"))
    needing = watched.stage("needing", broken, needs=ONE)
    other = watched.stage("other", needs=ONE)
    with pytest.raises(DataError, match="no text"):
        ensure_all([needing, other], store, {"CPU": 1}, 1)
    assert watched.order == ["broken", "other"]
    assert unfinished([other], store)[0] == []


def test_several_failures_are_counted(store: Store) -> None:
    watched = Watched()
    broken = [watched.stage(name, error=DataError(f"no {name}", "bring some")) for name in ("text", "label")]
    needing = watched.stage("needing", *broken)
    with pytest.raises(
        StageError,
        match="2 stages failed, and 1 more did not run because of these failures; the first failure: no text",
    ):
        ensure_all([needing], store, None, 4)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Restores Python's handler of ctrl-C, which pytest or another test may have changed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_is_not_reported_as_a_failure_of_running_stages(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted, threads = threading.Event(), list[threading.Thread]()

    def act(done: Done) -> None:
        threads.append(threading.current_thread())
        _thread.interrupt_main()
        interrupted.wait(PATIENCE_S)
        raise DataError("the workers are gone", "")

    with pytest.raises(KeyboardInterrupt):
        ensure_all([Waiting("a", act, room=ONE)], store, None, 1)
    interrupted.set()
    threads[0].join(PATIENCE_S)
    assert "failed" not in capsys.readouterr().err


def test_a_later_run_continues_a_failed_one(store: Store) -> None:
    first = Watched()
    broken = first.stage("b", first.stage("a"), error=DataError("broken", ""))
    with pytest.raises(DataError):
        ensure_all([broken], store, None, 4)
    second = Watched()
    ensure_all([second.stage("b", second.stage("a"))], store, None, 4)
    assert second.order == ["b"]
