"""Results: what a stage handed back comes back from its record as itself, and nothing else is taken for it."""

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapt.errors import StageError
from adapt.runner import Outcome, Store, ensure
from adapt.runner.record import Record, load_record
from adapt.runner.result import plain_values, read_result
from adapt.runner.stage import Stage
from tests.runner.made import made_up
from tests.runner.test_record import record
from tests.stage.test_values import KINDS

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
    """Values of a type."""
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
    """Instances of a dataclass, with every field set."""
    return st.builds(kind, **{name: values(hint) for name, hint in get_type_hints(kind).items()})


RESULTS: list[type[Any]] = list(dict.fromkeys(kind.result_type() for kind in KINDS))


def through_a_record(result: Any, folder: Path) -> Any:
    """What is read from the file of a record."""
    record(folder, metrics=plain_values(result)).save()
    loaded = load_record(folder)
    assert loaded is not None
    return read_result(type(result), loaded)


def differences(first: Any, second: Any) -> list[str]:
    """Where two values are not the same, types included: 1 is neither 1.0 nor true, a tuple no list."""
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
def test_a_result_comes_back_from_its_record_as_itself(
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
    """A field of every type that results may have."""

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
def test_every_type_of_field(tmp_path_factory: pytest.TempPathFactory, result: Everything) -> None:
    assert differences(result, through_a_record(result, tmp_path_factory.getbasetemp())) == []


def test_a_record_keeps_plain_values() -> None:
    part = Part(0.5, ("x",))
    assert plain_values(part) == {"share": 0.5, "names": ["x"]}
    found = plain_values(made_up(Everything, choice="a", pair=(1, "x"), maybe=part, by_number={3: [None]}, mapping={}))
    assert (found["maybe"], found["by_number"], found["path"]) == ({"share": 0.5, "names": ["x"]}, {"3": [None]}, ".")
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("given", [{"lines": 3}, None, 3, Part])
def test_a_result_that_is_no_dataclass_is_refused(given: Any) -> None:
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
    """For the tests below."""

    kind = "counting"

    name: str = "toy"

    def what(self) -> Mapping[str, Any]:
        return {}

    def run(self, folder: Path, done: Any) -> Outcome[Counted]:
        return Outcome(Counted(3, 0.5, {"a": Part(1.0, ("x",))}))


def kept(path: Path, metrics: Any) -> Record:
    return record(path, stage="counting", metrics=metrics)


def test_what_fits_is_read(tmp_path: Path) -> None:
    assert read_result(Counted, kept(tmp_path, FITS)) == Counted(3, 0.5, {"a": Part(1.0, ("x",))})
    assert read_result(Counted, kept(tmp_path, FITS | {"share": 1})).share == 1.0  # JSON has one kind of number
    with_more = FITS | {"gone": 1}  # a field that results of this kind had when it was written
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
def test_a_record_that_does_not_fit_is_refused_kindly(tmp_path: Path, name: str) -> None:
    change, place = WRONG[name]
    with pytest.raises(StageError) as caught:
        read_result(Counted, kept(tmp_path, change(FITS)))
    said = f"{tmp_path / 'stage.json'} does not hold a result of stage counting: {place}: "
    assert caught.value.what.startswith(said)
    assert "\n" not in caught.value.what
    assert caught.value.fix == f"delete the folder {tmp_path} to run the stage again"


def test_a_stage_whose_record_does_not_fit_is_not_taken_for_finished(tmp_path: Path) -> None:
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
