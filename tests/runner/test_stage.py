"""Tests stages as values (names of inputs, equality, results), and which values the key of a stage depends on."""

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapt.runner import Done, Outcome, Shown, Stage, Store, ensure
from adapt.runner.stage import Finished, canonical, changes, everything, flatten, paths_outside, stage_key
from adapt.support.errors import StageError
from tests.runner.test_ensure import Waiting


@dataclass(frozen=True)
class Number:
    value: int


@dataclass(frozen=True)
class Word:
    value: str


@dataclass(frozen=True, eq=False)
class Constant(Stage[Number]):
    kind = "constant"

    name: str
    value: int = 0

    def what(self) -> Mapping[str, Any]:
        return {"value": self.value}

    def run(self, folder: Path, done: Done) -> Outcome[Number]:
        return Outcome(Number(self.value))


@dataclass(frozen=True)
class Pair:
    """A dataclass that contains stages, but is not a stage."""

    first: Stage[Any] | None
    second: Stage[Any] | None = None
    label: str = ""


@dataclass(frozen=True)
class Outer:
    pairs: tuple[Pair, ...]
    by_name: Mapping[str, Pair] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Reads(Stage[Word]):
    """A stage that takes every stage in its fields as an input."""

    kind = "reads"
    version = 3

    name: str
    one: Any = None
    two: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def what(self) -> Mapping[str, Any]:
        return self.settings

    def run(self, folder: Path, done: Done) -> Outcome[Word]:
        return Outcome(Word(" ".join(str(done[stage].result.value) for stage in self.inputs.values())))


A, B, C = (Constant(name, value) for value, name in enumerate("abc"))
FOUND: list[tuple[Any, dict[str, Stage[Any]]]] = [
    (None, {}),
    ("a", {}),
    ({"a": 1, "b": [1, "x"]}, {}),
    (A, {"one": A}),
    ({"cs": A, "bio": B}, {"one.cs": A, "one.bio": B}),
    ((A, B), {"one.0": A, "one.1": B}),
    ([B, None, A], {"one.0": B, "one.2": A}),
    (Pair(A), {"one.first": A}),
    (Pair(None, B), {"one.second": B}),
    (Pair(A, B, "x"), {"one.first": A, "one.second": B}),
    ({"task": (A, B), "other": (C,)}, {"one.task.0": A, "one.task.1": B, "one.other.0": C}),
    (Outer((Pair(A), Pair(B, C))), {"one.pairs.0.first": A, "one.pairs.1.first": B, "one.pairs.1.second": C}),
    (Outer((), {"x": Pair(A)}), {"one.by_name.x.first": A}),
    ({"deep": {"er": {"est": (Outer((Pair(B),)),)}}}, {"one.deep.er.est.0.pairs.0.first": B}),
    ((A, A), {"one.0": A, "one.1": A}),
    (Number, {}),  # a class is not searched for stages
]


@pytest.mark.parametrize(("value", "expected"), FOUND, ids=[str(number) for number in range(len(FOUND))])
def test_inputs_are_found_in_all_kinds_of_fields(value: Any, expected: dict[str, Stage[Any]]) -> None:
    stage = Reads("x", value)
    assert list(stage.inputs) == list(expected)
    assert all(stage.inputs[name] is needed for name, needed in expected.items())


def test_inputs_follow_the_order_of_fields_and_exclude_indirect_ones() -> None:
    inner = Reads("inner", A)
    stage = Reads("outer", {"x": B}, inner)
    assert list(stage.inputs) == ["one.x", "two"]
    assert inner.inputs == {"one": A}


def test_stages_that_are_only_shown_are_needed_but_are_no_inputs(tmp_path: Path) -> None:
    plain, stage = Reads("x", A), Reads("x", A, Shown({"general": B}))
    assert stage.key == plain.key
    assert list(stage.inputs) == ["one"]
    assert stage.needed == [A, B]
    assert B in everything([stage])
    store = Store(tmp_path)
    finished = ensure(stage, store)
    assert list(finished.record.inputs) == ["one"]
    assert store.record_of(B)


def test_two_inputs_with_the_same_name_are_refused() -> None:
    """A key contains inputs by name. If two inputs had the same name, one of them would be missing from the key."""
    with pytest.raises(StageError, match=r"two inputs of this stage are called one\.a\.b"):
        _ = Reads("x", {"a": {"b": A}, "a.b": B}).inputs
    with pytest.raises(StageError, match=r"two inputs of this stage are called one\.a\.b"):
        _ = Reads("x", {"a": {"b": A}, "a.b": B}).key


def test_every_input_reaches_the_run_and_the_record(tmp_path: Path) -> None:
    stage = Reads("x", {"p": A, "q": (B, Pair(C))}, settings={"rate": 1})
    finished = ensure(stage, Store(tmp_path))
    assert finished.result == Word("0 1 2")
    assert {name: made["key"] for name, made in finished.record.inputs.items()} == {
        "one.p": A.key,
        "one.q.0": B.key,
        "one.q.1.first": C.key,
    }
    assert finished.path == finished.record.path == tmp_path / "reads" / f"x-{stage.key[:16]}"


# --- identity


def test_a_key_depends_on_kind_version_what_and_inputs() -> None:
    stage = Reads("x", {"p": A}, settings={"rate": 1})
    assert stage.key == stage_key("reads", 3, {"rate": 1}, {"one.p": A.key})


@pytest.mark.parametrize(
    "other",
    [
        Reads("x", {"p": B}, settings={"rate": 1}),
        Reads("x", {"q": A}, settings={"rate": 1}),
        Reads("x", (A,), settings={"rate": 1}),
        Reads("x", None, {"p": A}, {"rate": 1}),
        Reads("x", {"p": A}, A, {"rate": 1}),
        Reads("x", {"p": A}, settings={"rate": 2}),
        Reads("x"),
        A,
    ],
)
def test_stages_with_different_keys_differ(other: Stage[Any]) -> None:
    stage = Reads("x", {"p": A}, settings={"rate": 1})
    assert stage != other
    assert len({stage, other}) == 2


def test_stages_with_the_same_key_are_equal_whatever_their_names() -> None:
    one, other = (Reads(name, {"p": Constant(name, 7)}, settings={"rate": 1}) for name in ("x", "y"))
    assert one is not other
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other}) == 1
    assert {one: 1}[other] == 1
    assert one != one.key
    assert one != object()


def test_a_version_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Reads("x", A).key
    monkeypatch.setattr(Reads, "version", 4)
    assert Reads("x", A).key != before
    monkeypatch.setattr(Constant, "version", 4)
    again = Constant("a", 0)
    assert again.key != A.key
    assert Reads("x", again).key != Reads("x", A).key


def test_a_changed_field_makes_a_new_stage_and_keeps_the_old() -> None:
    stage = Reads("x", A)
    inputs, key = stage.inputs, stage.key
    changed = replace(stage, one=B)
    assert (changed.inputs, stage.inputs, stage.key) == ({"one": B}, inputs, key)
    assert changed.key != key
    with pytest.raises(FrozenInstanceError):
        stage.one = B  # type: ignore[misc]


# --- results


def test_a_stage_says_which_class_its_result_is() -> None:
    assert (Constant.result_type(), Reads.result_type()) == (Number, Word)
    assert A.result_type() is Number


def test_results_are_read_as_the_class_of_their_stage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one, other = ensure(A, store), ensure(B, store)
    done = Done({each.record.key: each.record for each in (one, other)})
    assert (done[A], done[B]) == (one, other)
    assert (done[A].result, done[Constant("renamed", 1)].result) == (Number(0), Number(1))
    assert (A in done, C in done) == (True, False)
    assert Finished.of(A, one.record) == one
    with pytest.raises(KeyError):
        done[C]


def test_a_stage_without_what_or_run_cannot_be_created() -> None:
    @dataclass(frozen=True, eq=False)
    class Half(Stage[Number]):
        kind = "half"
        name: str

    with pytest.raises(TypeError, match="abstract"):
        Half("x")  # type: ignore[abstract]


def test_a_stage_uses_the_whole_cluster_unless_it_declares_less() -> None:
    assert A.needs() is None


def toy(name: str, *reads: Waiting) -> Waiting:
    return Waiting(name, lambda done: None, reads)


def test_everything_lists_stages_and_all_inputs_once_stages_first() -> None:
    text = toy("text")
    one, two = toy("one", text), toy("two", text)
    last = toy("last", one, two, text)
    assert [stage.name for stage in everything([last])] == ["last", "one", "two", "text"]
    assert [stage.name for stage in everything([two, one])] == ["two", "one", "text"]
    assert everything([]) == []


@dataclass(frozen=True)
class Model:
    folder: Path

    def files_outside(self) -> list[Path]:
        return [self.folder]


@dataclass(frozen=True, eq=False)
class Reading(Stage[Number]):
    """A stage that reads models, and other stages."""

    kind = "reading"

    models: Mapping[str, Model]
    before: Stage[Any] | None = None

    def what(self) -> Mapping[str, Any]:
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[Number]:
        raise NotImplementedError


def test_files_outside_of_the_storage_root_are_those_of_the_stage_itself(tmp_path: Path) -> None:
    for name in ("mine", "theirs", "runs/made"):
        (tmp_path / name).mkdir(parents=True)
    before = Reading({"a": Model(tmp_path / "theirs")})
    models = {name: Model(tmp_path / name) for name in ("mine", "missing", "runs/made")}
    assert paths_outside(Reading(models, before), tmp_path / "runs") == [tmp_path / "mine"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def reordered(value: Any, draw: random.Random) -> Any:
    """Returns an equal value in which the keys of mappings are in a different order."""
    if isinstance(value, dict):
        items = [(key, reordered(item, draw)) for key, item in value.items()]
        draw.shuffle(items)
        return dict(items)
    return [reordered(item, draw) for item in value] if isinstance(value, list) else value


@given(JSON, st.randoms(use_true_random=False))
def test_canonical_text_does_not_depend_on_the_order_of_keys(value: Any, draw: random.Random) -> None:
    assert canonical(reordered(value, draw)) == canonical(value)
    assert json.dumps(json.loads(canonical(value)), sort_keys=True) == json.dumps(value, sort_keys=True)


def test_canonical_text_of_an_example() -> None:
    value = {"b": [1, 0.1, None, True], "a": {"é": "x y", "empty": {}}, "rate": 5e-4}
    assert canonical(value) == '{"a":{"empty":{},"\\u00e9":"x y"},"b":[1,0.1,null,true],"rate":0.0005}'


def test_number_types_are_distinguished_and_sequence_types_are_not() -> None:
    assert len({canonical({"a": value}) for value in (1, 1.0, True, "1", None, [1])}) == 6
    assert canonical({"a": (1, (2,))}) == canonical({"a": [1, [2]]})


@dataclass
class Thing:
    """An object without a stable text representation."""

    value: int = 1


class Choice(IntEnum):
    """An enum that prints like a number, but whose text depends on the Python version."""

    ONE = 1


@pytest.mark.parametrize(
    "unstable",
    [{1, 2}, frozenset(), Thing(), object(), Choice.ONE, Path("a"), b"a", 1j, float("nan"), float("inf"), iter("a")],
    ids=lambda value: type(value).__name__ + str(value)[:3],
)
def test_values_without_stable_text_are_refused_by_name(unstable: Any) -> None:
    with pytest.raises(StageError, match=r"^train\.what\.model\.layers\[1\]\.rate is "):
        stage_key("train", 1, {"model": {"layers": [{"rate": 1}, {"rate": unstable}]}}, {})


@pytest.mark.parametrize("key", [1, 1.5, True, None, ("a",), Choice.ONE])
def test_keys_must_be_strings(key: Any) -> None:
    with pytest.raises(StageError, match=r"^train\.what\.model has the key .* which is not a string"):
        stage_key("train", 1, {"model": {key: 1}}, {})


BASE: dict[str, Any] = {"stage": "train", "version": 1, "what": {"rate": 0.1, "seed": 0}, "inputs": {"corpus": "ab"}}


def test_the_key_of_an_example() -> None:
    text = '{"inputs":{"corpus":"ab"},"stage":"train","version":1,"what":{"rate":0.1,"seed":0}}'
    assert stage_key(**BASE) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"stage": "evaluate"},
        {"version": 2},
        {"what": {"rate": 0.2, "seed": 0}},
        {"what": {"rate": 0.1}},
        {"what": {"rate": 0.1, "seed": 0, "new": None}},
        {"what": {"rate": 0.1, "seed": False}},
        {"inputs": {"corpus": "abc"}},
        {"inputs": {"domain": "ab"}},
        {"inputs": {}},
        {"inputs": {"corpus": "ab", "general": "ab"}},
    ],
    ids=str,
)
def test_the_key_depends_on_every_ingredient(change: dict[str, Any]) -> None:
    assert stage_key(**{**BASE, **change}) != stage_key(**BASE)


def test_swapped_ingredients_change_the_key() -> None:
    assert stage_key("s", 1, {"a": "x"}, {}) != stage_key("s", 1, {}, {"a": "x"})


def test_flatten_names_nested_fields() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": [1]}, "e": None}) == {"a.b.c": 1, "a.d": [1], "e": None}


def test_changes_name_the_fields_that_differ() -> None:
    old = {"training": {"rate": 5e-4, "steps": 10, "gone": 1}, "seed": 0, "model": "0" * 64, "same": [1, {"a": 2}]}
    new = {"training": {"rate": 1e-4, "steps": 10, "new": None}, "seed": 0, "model": "ab" * 32, "same": [1, {"a": 2}]}
    assert changes(old, new) == [
        "model: 00000000… -> abababab…",
        "training.gone: 1 -> (not there)",
        "training.new: (not there) -> null",
        "training.rate: 0.0005 -> 0.0001",
    ]


def test_long_values_are_shortened_to_the_part_that_differs() -> None:
    old, new = [f"block {number}" for number in range(20)], [f"block {number}" for number in range(19)]
    (line,) = changes({"cleaning": old}, {"cleaning": new})
    assert line == 'cleaning: …block 18", "block 19"] -> …block 18"]'
    (line,) = changes({"paths": ["a" * 100]}, {"paths": ["b" * 100]})
    assert line == f'paths: ["{"a" * 37}… -> ["{"b" * 37}…'


def test_changes_are_listed_exactly_when_keys_differ() -> None:
    assert changes({"a": 1, "b": 1}, {"a": 1.0, "b": True}) == ["a: 1 -> 1.0", "b: 1 -> true"]
    assert changes({"a": [1]}, {"a": (1,)}) == []
