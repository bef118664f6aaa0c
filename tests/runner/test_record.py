"""Tests the record: it is written completely or not at all, and read back unchanged."""

import errno
import json
import os
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapt.runner import Outcome, Store, ensure
from adapt.runner.files import ASIDE, remove_asides, storage_errors, write_atomically
from adapt.runner.record import Record, cost_of, load_record, plain_values, read_result
from adapt.runner.stage import Stage
from adapt.support.errors import StageError, StorageError
from tests.runner.made import made_up
from tests.stage.test_values import KINDS


def record(folder: Path, **changed: Any) -> Record:
    values: dict[str, Any] = {
        "stage": "train",
        "name": "demo",
        "key": "ab" * 32,
        "version": 1,
        "what": {"training": {"learning_rate": 5e-4, "max_steps": None}},
        "inputs": {"corpus": {"stage": "prepare", "key": "cd" * 32, "path": "/runs/prepare/demo-cdcdcdcd"}},
        "metrics": {"loss": 2.5, "dropped": {"short": 3}},
        "cost": {"seconds": 1.25},
        "resources": {"workers": 2},
        "outputs": {"model/config.json": 7},
        "packages": {"torch": "2.11"},
        "started_at": "2026-01-01T00:00:00+00:00",
        "path": folder,
    }
    return Record(**{**values, **changed})


def test_a_record_is_read_back_unchanged(tmp_path: Path) -> None:
    saved = record(tmp_path / "deep" / "folder")
    saved.save()
    loaded = load_record(saved.path)
    assert loaded == saved
    assert loaded.path == saved.path


def test_a_record_has_its_present_folder(tmp_path: Path) -> None:
    record(tmp_path / "old").save()
    (tmp_path / "old").rename(tmp_path / "new")
    moved = load_record(tmp_path / "new")
    assert moved is not None
    assert moved.path == tmp_path / "new"
    assert str(tmp_path) not in (tmp_path / "new" / "stage.json").read_text()


def test_users_who_may_read_the_folder_may_read_the_record(tmp_path: Path) -> None:
    for folder, file in ((0o755, 0o644), (0o2775, 0o664), (0o1777, 0o644), (0o750, 0o640), (0o700, 0o600)):
        tmp_path.chmod(folder)
        record(tmp_path).save()
        assert (tmp_path / "stage.json").stat().st_mode & 0o777 == file


def test_a_folder_without_record_is_unfinished(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("half")
    assert load_record(tmp_path) is None
    assert load_record(tmp_path / "missing") is None


def valid(folder: Path) -> dict[str, Any]:
    record(folder).save()
    return json.loads((folder / "stage.json").read_text())  # type: ignore[no-any-return]


UNREADABLE = [b"", b"{", b"[]", b"{}", b"null", b"7", b"\xff\xfe", b'{"stage": "train"}', b"[" * 100_000]


@pytest.mark.parametrize("content", UNREADABLE)
def test_an_unreadable_record_names_its_folder(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "stage.json").write_bytes(content)
    with pytest.raises(StageError, match=r"cannot be read|is damaged") as caught:
        load_record(tmp_path)
    assert str(tmp_path / "stage.json") in caught.value.what
    assert f"delete {tmp_path / 'stage.json'}: the stage runs again" in caught.value.fix


def test_a_record_with_other_fields_is_unreadable(tmp_path: Path) -> None:
    values = valid(tmp_path)
    others = {"metrics": [], "key": 7, "version": "1", "inputs": {"corpus": {"key": "1a"}}, "outputs": {"a": "7"}}
    wrongs = [{**values, name: value} for name, value in others.items()]
    for wrong in (*wrongs, {**values, "novelty": 1}, {key: values[key] for key in values if key != "key"}):
        (tmp_path / "stage.json").write_text(json.dumps(wrong))
        with pytest.raises(StageError, match=str(tmp_path)):
            load_record(tmp_path)


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("")
    with pytest.raises(StageError, match=str(tmp_path / "folder")):
        load_record(tmp_path / "folder")


# Operating-system errors, each with its message. The test below raises each error in every call that can fail.
REFUSALS = [
    (errno.ENOSPC, "no space left while writing"),
    (errno.EDQUOT, "no space left while writing"),
    (errno.EACCES, "cannot write"),
    (errno.EPERM, "cannot write"),
    (errno.EROFS, "cannot write"),
]


@pytest.mark.parametrize("call", ["replace", "fsync", "chmod"])
@pytest.mark.parametrize(("code", "message"), REFUSALS)
def test_a_refused_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, message: str
) -> None:
    write_atomically(tmp_path / "stage.json", "old")

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StorageError, match=message) as caught:
        write_atomically(tmp_path / "stage.json", "new")
    assert str(tmp_path / "stage.json") in caught.value.what
    assert "storage.root" in caught.value.fix
    assert [file.name for file in tmp_path.iterdir()] == ["stage.json"]
    assert (tmp_path / "stage.json").read_text() == "old"


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "stage.json", "new")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def note(call: str) -> None:
        real = getattr(os, call)

        def noted(*args: Any) -> None:
            calls.append((call, (tmp_path / "a").exists()))
            real(*args)

        monkeypatch.setattr(os, call, noted)

    note("fsync")
    note("replace")
    write_atomically(tmp_path / "a", "text")
    assert calls == [("fsync", False), ("replace", False)]
    assert (tmp_path / "a").read_text() == "text"


@pytest.mark.parametrize("place", ["file/stage.json", "file/deep/stage.json"])
def test_a_file_where_a_folder_should_be_is_a_storage_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=f"cannot write {tmp_path / place}"):
        write_atomically(tmp_path / place, "")


def test_other_errors_are_not_converted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), storage_errors(tmp_path):
        (tmp_path / "gone").read_text()


def test_leftovers_of_killed_writes_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    kept = [tmp_path / "stage.json", tmp_path / ".hidden", tmp_path / f"notes{ASIDE}", tmp_path / "deep" / "shard"]
    for file in (*kept, tmp_path / f".stage.json.x{ASIDE}", tmp_path / "deep" / f".shard.y{ASIDE}"):
        file.write_text("")
    remove_asides(tmp_path)
    assert sorted(file for file in tmp_path.rglob("*") if file.is_file()) == sorted(kept)


@pytest.mark.parametrize("variable", ["HOME", "TMPDIR"])
def test_a_write_error_elsewhere_does_not_blame_the_storage_root(
    tmp_path: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setenv(variable, str(tmp_path / "mine"))
    refused = tmp_path / "mine" / ".cache"
    for code, words in ((errno.EROFS, "cannot read or write"), (errno.ENOSPC, "no space left while writing")):
        with pytest.raises(StorageError) as caught, storage_errors(tmp_path / "runs" / "train"):
            raise OSError(code, os.strerror(code), str(refused))
        assert f"{words} {refused}" in caught.value.what
        assert f"set {variable} to" in caught.value.fix
        assert "storage.root" not in str(caught.value)


@pytest.mark.parametrize("named", ["runs", "runs/train/a", "runs/.train.lock", None])
def test_a_write_error_in_the_storage_root_blames_it(tmp_path: Path, named: str | None) -> None:
    with pytest.raises(StorageError, match=r"point storage\.root"), storage_errors(tmp_path / "runs" / "train"):
        raise PermissionError(errno.EACCES, "denied", named and str(tmp_path / named))


pytestmark = pytest.mark.heavy

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    Any: JSON,
    type(None): st.none(),
    bool: st.booleans(),
    int: st.integers(-(2**53), 2**60),
    float: st.floats(allow_nan=False) | st.sampled_from([0.1, 1e-300, 5e300, -0.0, float("inf")]),
    str: st.text(max_size=5) | st.sampled_from(["1", "null", "", "é\n"]),
    Path: st.sampled_from([Path("runs/a"), Path("/runs/b c")]),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Returns a strategy that generates values of a type."""
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values, arguments))
    if origin is Literal:
        return st.sampled_from(arguments)
    if is_dataclass(origin):
        return instances(hint)
    if origin is list:
        return st.lists(values(arguments[0]), max_size=2)
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if origin in (dict, Mapping):
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=2)
    raise AssertionError(f"a result holds {hint}: say here what its values are")


def instances(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Returns a strategy that generates instances of a dataclass with every field set."""
    hints = {name: hint for name, hint in get_type_hints(kind).items() if get_origin(hint) is not ClassVar}
    return st.builds(kind, **{name: values(hint) for name, hint in hints.items()})


RESULTS: list[type[Any]] = list(dict.fromkeys(kind.result_type() for kind in KINDS))


def through_a_record(result: Any, folder: Path) -> Any:
    """Writes a result to a record, and returns the result as read from the record."""
    record(folder, metrics=plain_values(result)).save()
    loaded = load_record(folder)
    assert loaded is not None
    return read_result(type(result), loaded)


def differences(first: Any, second: Any) -> list[str]:
    """Returns the differences between two values. Values of different types, such as 1, 1.0 and true, are not equal."""
    if type(first) is not type(second):
        return [f"{first!r} is a {type(first).__name__}, {second!r} a {type(second).__name__}"]
    if is_dataclass(first):
        pairs = [(getattr(first, each.name), getattr(second, each.name)) for each in fields(first)]
        return [fault for pair in pairs for fault in differences(*pair)]
    if isinstance(first, dict):
        if list(first) != list(second):
            return [f"{list(first)} and {list(second)}"]
        return [fault for key in first for fault in differences(first[key], second[key])]
    if isinstance(first, list | tuple) and len(first) == len(second):
        return [fault for pair in zip(first, second, strict=True) for fault in differences(*pair)]
    return [] if repr(first) == repr(second) else [f"{first!r} and {second!r}"]


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_a_result_is_read_back_from_its_record_unchanged(
    kind: type[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("stage")

    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(instances(kind))
    def check(result: Any) -> None:
        assert differences(result, through_a_record(result, folder)) == []

    check()


@dataclass(frozen=True)
class Part:
    share: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Everything:
    """A result with a field of every type that results may have."""

    whole: int
    real: float
    said: bool
    text: str
    path: Path
    choice: Literal["a", "b"]
    part: Part
    maybe: Part | None
    number: int | float
    parts: list[Part]
    pair: tuple[int, str]
    several: tuple[Part, ...]
    by_name: dict[str, Part]
    by_number: dict[int, list[float | None]]
    mapping: Mapping[str, int | None]
    anything: dict[str, Any]


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(instances(Everything))
def test_every_type_of_field_is_read_back(tmp_path_factory: pytest.TempPathFactory, result: Everything) -> None:
    assert differences(result, through_a_record(result, tmp_path_factory.getbasetemp())) == []


def test_a_record_stores_plain_values() -> None:
    part = Part(0.5, ("x",))
    assert plain_values(part) == {"share": 0.5, "names": ["x"]}
    found = plain_values(made_up(Everything, choice="a", pair=(1, "x"), maybe=part, by_number={3: [None]}, mapping={}))
    assert (found["maybe"], found["by_number"], found["path"]) == ({"share": 0.5, "names": ["x"]}, {"3": [None]}, ".")
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("given", [{"lines": 3}, None, 3, Part])
def test_a_result_must_be_a_dataclass(given: Any) -> None:
    with pytest.raises(TypeError, match="the result of a stage is a dataclass, not "):
        plain_values(given)


@dataclass(frozen=True)
class Counted:
    lines: int
    share: float
    found: dict[str, Part]


FITS = {"lines": 3, "share": 0.5, "found": {"a": {"share": 1.0, "names": ["x"]}}}


@dataclass(frozen=True, eq=False)
class Counting(Stage[Counted]):
    """A stage with a result of several types, for the tests below."""

    kind = "counting"

    name: str = "toy"

    def what(self) -> Mapping[str, Any]:
        return {}

    def run(self, folder: Path, done: Any) -> Outcome[Counted]:
        return Outcome(Counted(3, 0.5, {"a": Part(1.0, ("x",))}))


def kept(path: Path, metrics: Any) -> Record:
    return record(path, stage="counting", metrics=metrics)


def test_metrics_that_fit_the_result_are_read(tmp_path: Path) -> None:
    assert read_result(Counted, kept(tmp_path, FITS)) == Counted(3, 0.5, {"a": Part(1.0, ("x",))})
    # JSON does not distinguish 1 from 1.0
    assert read_result(Counted, kept(tmp_path, FITS | {"share": 1})).share == 1.0
    with_more = FITS | {"gone": 1}  # imitates a field that only an earlier version of the class had
    assert read_result(Counted, kept(tmp_path, with_more)) == read_result(Counted, kept(tmp_path, FITS))


Change = Callable[[dict[str, Any]], Any]
WRONG: dict[str, tuple[Change, str]] = {
    "a field is missing": (lambda fits: {name: fits[name] for name in ("share", "found")}, "lines"),
    "it is empty": (lambda fits: {}, "lines"),
    "a text in place of a number": (lambda fits: fits | {"lines": "many"}, "lines"),
    "half a line": (lambda fits: fits | {"lines": 2.5}, "lines"),
    "nothing in place of a number": (lambda fits: fits | {"share": None}, "share"),
    "a list in place of names": (lambda fits: fits | {"found": []}, "found"),
    "within": (lambda fits: fits | {"found": {"a": {"share": "x"}}}, "found.a.share"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_record_that_does_not_fit_its_result_is_refused_with_a_fix(tmp_path: Path, name: str) -> None:
    change, place = WRONG[name]
    with pytest.raises(StageError) as caught:
        read_result(Counted, kept(tmp_path, change(FITS)))
    said = f"{tmp_path / 'stage.json'} does not hold a result of stage counting: {place}: "
    assert caught.value.what.startswith(said)
    assert "\n" not in caught.value.what
    assert caught.value.fix == f"delete the folder {tmp_path} to run the stage again"


def test_a_stage_whose_record_does_not_fit_is_not_finished(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finished = ensure(Counting(), store)
    assert finished.result == Counted(3, 0.5, {"a": Part(1.0, ("x",))})
    assert ensure(Counting(), store) == finished
    file = finished.path / "stage.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"metrics": {"lines": 3}}))
    with pytest.raises(StageError, match="does not hold a result of stage counting: share: ") as caught:
        ensure(Counting(), store)
    assert str(finished.path) in caught.value.fix


def test_the_cost_is_hours_times_price_and_unknown_without_a_price() -> None:
    assert cost_of(5400.0, 2.0) == {"device_seconds": 5400.0, "device_hours": 1.5, "cost": 3.0}
    assert cost_of(5400.0, None)["cost"] is None
    assert cost_of(5400.0, 0.0)["cost"] == 0.0
