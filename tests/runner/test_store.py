"""Tests the folders, records and logs of stages."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.runner import ensure
from adapt.runner.record import Record
from adapt.runner.store import DIGITS, Store, failure_of, log_of, logged, logged_lines
from adapt.support.errors import ConfigError, DataError, StageError
from adapt.terminal import console
from adapt.terminal.console import log, log_values, take_log_format
from tests.runner.test_record import record
from tests.runner.toys import idle, single

KEY, OTHER = "1a" * 32, "2b" * 32


def finished(store: Store, stage: str, name: str, key: str, **changed: Any) -> Record:
    made = record(store.folder(stage, name, key), stage=stage, name=name, key=key, **changed)
    for output, size in made.outputs.items():
        (made.path / output).parent.mkdir(parents=True, exist_ok=True)
        (made.path / output).write_bytes(b"x" * size)
    made.save()
    return made


def test_a_folder_has_the_stages_kind_name_and_key(store: Store) -> None:
    assert store.folder("train", "demo", KEY) == store.root / "train" / "demo-1a1a1a1a1a1a1a1a"


@pytest.mark.parametrize("letter", ["a", "ä", "字"])
def test_a_stage_with_a_long_name_can_run(store: Store, letter: str) -> None:
    """A name may join the names of many tasks. Most file systems only allow names of 255 bytes."""
    stage = single(idle, f"n{letter * 300}")
    made = ensure(stage, store).record
    name = made.path.name.rpartition("-")[0]
    assert stage.name.startswith(name)
    assert len(name.encode()) == {"a": 200, "ä": 199, "字": 199}[letter]
    assert ensure(stage, Store(store.root)).record == made
    assert made.name == stage.name


def test_a_long_folder_of_an_earlier_version_is_found(store: Store) -> None:
    name = "n" * 220
    folder = store.root / "train" / f"{name}-{KEY[:DIGITS]}"
    folder.mkdir(parents=True)
    assert store.folder("train", name, KEY) == folder


def test_an_empty_store_has_no_records(store: Store) -> None:
    assert store.find("train", "demo", KEY) is None
    assert list(store.records()) == []
    assert store.nearest("train", 1, {}, {}) is None


def test_a_stage_is_found_by_its_key_and_not_by_its_name(store: Store) -> None:
    made = finished(store, "train", "demo", KEY)
    assert store.find("train", "demo", KEY) == made
    # the record has the name under which the stage was requested
    assert store.find("train", "renamed", KEY) == replace(made, name="renamed")
    assert store.folder("train", "renamed", KEY) == made.path
    assert store.find("train", "demo", OTHER) is None
    assert store.find("evaluate", "demo", KEY) is None


def test_a_renamed_or_linked_folder_is_found(store: Store, tmp_path: Path) -> None:
    made = finished(store, "train", "demo", KEY)
    renamed = made.path.rename(made.path.with_name("best-of-all-1a1a1a1a1a1a1a1a"))
    assert store.find("train", "demo", KEY) == made
    elsewhere = renamed.rename(tmp_path / "archive")
    renamed.symlink_to(elsewhere)
    found = store.find("train", "demo", KEY)
    assert found == made
    assert found.path.resolve() == elsewhere


def test_an_incomplete_copy_does_not_hide_a_finished_stage(store: Store) -> None:
    made = finished(store, "train", "demo", KEY)
    (store.root / "train" / "backup-1a1a1a1a1a1a1a1a").mkdir()  # this name sorts before the name of the finished folder
    assert store.find("train", "demo", KEY) == made
    assert store.folder("train", "demo", KEY) == made.path


@pytest.mark.parametrize("root", ["runs [1]", "a*b", "with space", "ünïcode"])
def test_a_root_of_any_name_works(tmp_path: Path, root: str) -> None:
    store = Store(tmp_path / root)
    made = finished(store, "train", "demo [x] *?", KEY)
    assert store.find("train", "another", KEY) == replace(made, name="another")
    assert list(store.records("train")) == [made]


def test_an_unfinished_folder_is_used_again(store: Store) -> None:
    half = store.root / "train" / "earlier-1a1a1a1a1a1a1a1a"
    half.mkdir(parents=True)
    assert store.folder("train", "demo", KEY) == half
    assert store.find("train", "demo", KEY) is None


def test_keys_with_eight_common_digits_have_separate_folders(store: Store) -> None:
    one, other = KEY, KEY[:8] + OTHER[8:]
    made = [finished(store, "train", "demo", key, metrics={"of": key}) for key in (one, other)]
    assert [store.find("train", "demo", key) for key in (one, other)] == made


def test_a_folder_with_the_record_of_another_key_is_refused(store: Store) -> None:
    made, other = finished(store, "train", "demo", KEY), KEY[:DIGITS] + OTHER[DIGITS:]
    for look in (store.find, store.known):
        with pytest.raises(StageError, match=f"{made.path} already holds another stage, whose key is {KEY}"):
            look("train", "demo", other)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.unlink(), "model/config.json is missing"),
        (lambda file: file.write_bytes(b""), "model/config.json has 0 of 7 bytes"),
        (lambda file: file.write_bytes(b"x" * 8), "model/config.json has 8 of 7 bytes"),
        (lambda file: shutil.rmtree(file.parent), "model/config.json is missing"),
    ],
)
def test_a_finished_stage_with_changed_files_is_refused(
    store: Store, damage: Callable[[Path], object], said: str
) -> None:
    made = finished(store, "train", "demo", KEY)
    damage(made.path / "model" / "config.json")
    with pytest.raises(
        StageError, match=f"the stage in {made.path} is finished, but its files have changed: {said}"
    ) as caught:
        store.find("train", "demo", KEY)
    assert f"delete {made.path / 'stage.json'}" in caught.value.fix
    assert store.known("train", "demo", KEY) == made  # `known` does not check files, for callers that only read metrics
    assert list(store.records("train")) == [made]


def test_many_missing_files_are_counted(store: Store) -> None:
    made = finished(store, "prepare", "demo", KEY, outputs={f"train-{n}.arrow": 1 for n in range(9)})
    for n in range(2, 9):
        (made.path / f"train-{n}.arrow").unlink()
    with pytest.raises(StageError, match=r"train-2\.arrow is missing, .*train-4\.arrow is missing and 4 more"):
        store.find("prepare", "demo", KEY)


def test_additional_files_of_a_finished_stage_are_ignored(store: Store) -> None:
    made = finished(store, "train", "demo", KEY)
    (made.path / "notes.txt").write_text("mine")
    assert store.find("train", "demo", KEY) == made


def test_an_unreadable_record_names_its_folder(store: Store) -> None:
    made = finished(store, "train", "demo", KEY)
    (made.path / "stage.json").write_text("{")
    with pytest.raises(StageError, match=str(made.path)) as caught:
        store.find("train", "demo", KEY)
    assert f"delete {made.path / 'stage.json'}" in caught.value.fix


BROKEN: dict[str, Callable[[Path], object]] = {
    "half written": lambda file: file.write_text('{"stage": "prepare", '),
    "of other fields": lambda file: file.write_text('{"stage": "prepare", "novelty": 1}'),
    "of other types": lambda file: file.write_text(file.read_text().replace('"metrics": {', '"metrics": 1, "more": {')),
    "no text": lambda file: file.write_bytes(b"\xff\xfe\0"),
    "too deep": lambda file: file.write_text("[" * 100_000),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("name", BROKEN)
def test_unreadable_records_are_skipped_and_logged_once(
    store: Store, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made, other = finished(store, "prepare", "a", KEY), finished(store, "prepare", "other", OTHER)
    BROKEN[name](other.path / "stage.json")
    for _ in range(2):
        assert list(store.records()) == [made]
        assert store.nearest("prepare", 1, {}, {}) is not None
    assert capsys.readouterr().err.count(f"skipped a record: {other.path / 'stage.json'}") == 1


def test_files_where_folders_are_expected_are_skipped(store: Store) -> None:
    made = finished(store, "prepare", "a", KEY)
    (store.root / "notes.txt").write_text("mine")
    (store.root / "train").write_text("mine")
    (store.root / "prepare" / f"b-{OTHER[:DIGITS]}").write_text("mine")
    assert list(store.records()) == [made]
    for stage, place in (("train", store.root / "train"), ("prepare", store.root / "prepare" / f"b-{OTHER[:DIGITS]}")):
        with pytest.raises(StageError, match=f"{place} is a file, but dontstop needs a folder"):
            store.find(stage, "b", OTHER)


def test_records_lists_the_finished_stages_of_a_kind(store: Store) -> None:
    second = finished(store, "train", "b", KEY)
    first = finished(store, "train", "a", OTHER)
    other = finished(store, "evaluate", "c", KEY)
    (store.root / "train" / "half-00000000").mkdir()
    assert list(store.records("train")) == [first, second]
    assert list(store.records()) == [other, first, second]


def inputs(**keys: str) -> dict[str, dict[str, str]]:
    return {name: {"stage": "prepare", "key": key, "path": "/x"} for name, key in keys.items()}


def test_the_nearest_stage_has_the_fewest_differences(store: Store) -> None:
    finished(store, "train", "a", "01" * 32, what={"rate": 3, "seed": 1}, inputs=inputs(corpus=KEY))
    near = finished(store, "train", "b", "02" * 32, what={"rate": 2, "seed": 0}, inputs=inputs(corpus=KEY))
    finished(store, "train", "c", "03" * 32, what={"rate": 2, "seed": 0}, inputs=inputs(corpus=OTHER))
    finished(store, "evaluate", "d", "04" * 32, what={"rate": 1, "seed": 0}, inputs=inputs(corpus=KEY))
    found = store.nearest("train", 1, {"rate": 1, "seed": 0}, {"corpus": KEY})
    assert found == (near, ["rate: 2 -> 1"])


def test_inputs_and_version_count_as_differences(store: Store) -> None:
    made = finished(store, "train", "a", "01" * 32, what={"rate": 1}, inputs=inputs(corpus=KEY, gone=KEY))
    found = store.nearest("train", 2, {"rate": 1}, {"corpus": OTHER, "general": KEY})
    assert found is not None
    assert found[0] == made
    assert found[1] == [
        "input corpus: 1a1a1a1a… -> 2b2b2b2b…",
        "input general: (not there) -> 1a1a1a1a…",
        "input gone: 1a1a1a1a… -> (not there)",
        "version of the stage's code: 1 -> 2",
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "train" / "cs-0123456789abcdef"


def test_messages_of_a_stage_are_written_to_its_log(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log("before")
    with logged(folder):
        log("step 1 of https://me:word@host/x")
    log("after")
    assert log_of(folder) == folder.parents[1] / "logs" / "train" / f"{folder.name}.jsonl"
    (line,) = logged_lines(folder)
    assert line["message"] == "step 1 of https://host/x"
    assert line["stage"] == "train/cs-0123456789abcdef"
    assert capsys.readouterr().err == "before\nstep 1 of https://host/x\nafter\n"


def test_a_failure_is_reported_until_the_stage_runs_again(folder: Path) -> None:
    assert failure_of(folder) is None
    with pytest.raises(DataError), logged(folder):
        raise DataError("the corpus is empty", "give it text")
    assert failure_of(folder) == "the corpus is empty"
    with logged(folder):
        log("train: beginning")
        assert failure_of(folder) is None


def test_an_incomplete_log_line_is_skipped(folder: Path) -> None:
    with logged(folder):
        log("whole")
    with log_of(folder).open("a") as file:
        file.write('{"message": "ha')
    assert [line["message"] for line in logged_lines(folder)] == ["whole"]


def test_a_log_that_cannot_be_written_does_not_stop_the_stage(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    with logged(tmp_path / "train" / "a-1"):
        log("goes on")


def test_json_log_lines_have_run_stage_and_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(console.FORMAT, "json")
    monkeypatch.setenv(console.RUN, "abc")
    with log_values(stage="train/x", rank=3):
        log("hello")
    line = json.loads(capsys.readouterr().err)
    assert {name: line[name] for name in ("run", "stage", "rank", "message")} == {
        "run": "abc",
        "stage": "train/x",
        "rank": 3,
        "message": "hello",
    }
    assert line["time"].endswith("+00:00")


@pytest.mark.parametrize("given", [["--log_format", "json"], ["--log_format=json"]])
def test_the_log_format_is_read_from_the_command_line(monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    monkeypatch.setenv(console.FORMAT, "plain")
    monkeypatch.setenv(console.RUN, "abc")
    monkeypatch.setattr(console.sys, "argv", ["jobs/dapt.py", "--config", "a.yaml", *given, "--seed", "1"])
    take_log_format()
    assert console.sys.argv == ["jobs/dapt.py", "--config", "a.yaml", "--seed", "1"]
    assert console.logs_json()


def test_an_unknown_log_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(console.RUN, "abc")
    monkeypatch.setattr(console.sys, "argv", ["jobs/dapt.py", "--log_format", "xml"])
    with pytest.raises(ConfigError, match="plain or json, not xml"):
        take_log_format()
