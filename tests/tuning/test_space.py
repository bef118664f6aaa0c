"""Tests search spaces from YAML and Python files, and the errors of invalid spaces."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapt.support.errors import ConfigError
from adapt.tuning.proposals import draw
from adapt.tuning.search_checks import ends, read_space

ROOT = Path(__file__).resolve().parents[2]
PYTHON = """
from ray import tune

def mine():
    return {"a.x": tune.loguniform(1e-5, 1e-3), "a.y": tune.choice([1, 2]), "b.z": tune.randint(2, 9), "b.w": [True]}
"""
YAML = """
a.x: {loguniform: [1e-5, 1e-3]}
a.y: [1, 2]
b: {z: {randint: [2, 9]}, w: [true]}
"""


def written(folder: Path, name: str, content: str) -> str:
    (folder / name).write_text(content)
    return str(folder / name)


def drawn(space: dict[str, Any]) -> dict[str, list[Any]]:
    generator = np.random.default_rng(3)
    return {name: [draw(domain, generator) for _ in range(20)] for name, domain in space.items()}


def test_yaml_and_python_give_the_same_space(tmp_path: Path) -> None:
    python, other = (read_space(written(tmp_path, f"s.{end}", text)) for end, text in (("py", PYTHON), ("yaml", YAML)))
    assert drawn(python) == drawn(other)
    assert {name: ends(domain) for name, domain in other.items()} == {
        "a.x": [1e-5, 1e-3],
        "a.y": [1, 2],
        "b.z": [2, 8],
        "b.w": [True],
    }


def test_values_are_plain_and_lie_in_their_domain(tmp_path: Path) -> None:
    found = drawn(read_space(written(tmp_path, "s.yaml", YAML)))
    assert all(type(value) is float and 1e-5 <= value <= 1e-3 for value in found["a.x"])
    assert all(type(value) is int for value in (*found["a.y"], *found["b.z"]))
    assert {*found["b.z"]} <= {*range(2, 9)}
    assert len({*found["a.x"]}) == 20


@pytest.mark.parametrize("file", sorted((ROOT / "tune_spaces").glob("*.py")), ids=lambda file: file.stem)
def test_our_spaces_can_be_read(file: Path) -> None:
    assert len(read_space(str(file))) >= 2


WRONG = {
    "empty": ("{}", "searches no field"),
    "a number": ("a.x: 3", "a.x in .* is 3, which is not a range or list of values"),
    "no values": ("a.x: []", "a.x in .* has an empty list of values"),
    "a domain that is none": ("a.x: {loguniforn: [1, 2]}", "there is no kind of range loguniforn"),
    "bounds that are turned": ("a.x: {uniform: [2.0, 1.0]}", "the lower bound 2 is not below the upper bound 1"),
    "a logarithm of nothing": ("a.x: {loguniform: [0, 1]}", "loguniform of"),
    "a bound too few": ("a.x: {uniform: [1]}", "uniform of"),
    "words": ("a.x: {uniform: [low, high]}", "uniform of"),
    "two domains": ("a.x: {uniform: [1, 2], choice: [3]}", "is not a range or list of values"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_of_a_yaml_space_name_the_field(name: str, tmp_path: Path) -> None:
    content, message = WRONG[name]
    with pytest.raises(ConfigError, match=message) as caught:
        read_space(written(tmp_path, "s.yaml", content))
    assert caught.value.fix


def test_a_misspelt_domain_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_space(written(tmp_path, "s.yaml", "a.x: {loguniforn: [1, 2]}"))
    assert caught.value.fix == "did you mean loguniform?"


WRONG_PYTHON = {
    "no function": ("x = 3", "has 0 functions"),
    "two functions": ("def a(): return {}\ndef b(): return {}", r"has 2 functions \(a, b\)"),
    "one that fails": ("def a(): raise ValueError('no')", "a.. fails: no"),
    "no Python": ("def a(:", "cannot be imported"),
    "what it returns": ("def a(): return 3", "searches no field"),
}


@pytest.mark.parametrize("name", WRONG_PYTHON)
def test_errors_of_a_python_space_name_the_file(name: str, tmp_path: Path) -> None:
    content, message = WRONG_PYTHON[name]
    with pytest.raises(ConfigError, match=message):
        read_space(written(tmp_path, "s.py", content))


def test_a_file_that_is_not_there_is_named() -> None:
    for name in ("none.py", "none.yaml"):
        with pytest.raises(ConfigError, match=name):
            read_space(name)
