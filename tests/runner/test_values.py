"""Values of declared types, read from what JSON keeps of them; what does not fit is named with its place."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from adapt.runner.values import Misfit, read_value


@dataclass(frozen=True)
class Inner:
    share: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    parts: list[Inner]
    named: Mapping[str, Inner | None]


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (float, 3, 3.0),
        (int, 3.0, 3),
        (int | float, 3.0, 3.0),
        (float | int, 3, 3),
        (Path, "runs/a", Path("runs/a")),
        (dict[int, str], {"-3": "a"}, {-3: "a"}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (Inner | None, None, None),
        (Inner, {"share": 1, "gone": 2}, Inner(1.0)),
        (Any, {"a": [1, None]}, {"a": [1, None]}),
    ],
)
def test_values_that_fit(hint: Any, value: Any, expected: Any) -> None:
    found = read_value(hint, value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, 2.5, ": takes int, not 2.5"),
        (int, True, ": takes int, not True"),
        (float, "1", ": takes float, not '1'"),
        (str, None, ": takes str, not None"),
        (None | int, "a", ": takes"),
        (Literal["a", "b"], "c", ": takes one of 'a', 'b', not 'c'"),
        (list[int], [1, "a"], "1: takes int, not 'a'"),
        (tuple[int, int], [1], ": takes 2 items"),
        (dict[int, int], {"a": 1}, "a: takes int, not 'a'"),
        (Inner, [], ": takes a mapping"),
        (Inner, {}, "share: missing"),
        (Outer, {"parts": [{"share": 1}, {"share": None}], "named": {}}, "parts.1.share: takes float, not None"),
        (Outer, {"parts": [], "named": {"a": {}}}, "named.a.share: missing"),
    ],
)
def test_what_does_not_fit_is_named(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(Misfit) as caught:
        read_value(hint, value)
    assert str(caught.value).startswith(message)


def test_a_type_that_no_result_may_have_is_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError, match="no value of type"):
        read_value(set[int], [1])
