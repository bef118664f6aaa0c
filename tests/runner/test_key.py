"""Tests which values a key depends on, and that the text of a key is stable."""

import hashlib
import json
import random
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapt.runner.key import canonical, changes, flatten, stage_key
from adapt.support.errors import StageError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def reordered(value: Any, draw: random.Random) -> Any:
    """Returns an equal value whose mappings have their keys in another order."""
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
