"""Tests tables of plug-ins, such as the table of methods: look-up, refused names, and a plug-in's options and code."""

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from adapt.config.kinds import Kinds, imported, read_options
from adapt.support.errors import ConfigError


class Part(ABC):
    """Base class of the plug-ins in this file's tables."""

    @abstractmethod
    def act(self) -> str: ...


class Built(Part):
    def act(self) -> str:
        return "built in"


KNOWN = {"built": f"{__name__}:Built", "lazy": "no_such_module:Lazy"}
PARTS: Kinds[type[Part]] = Kinds("part", KNOWN, base=f"{__name__}:Part")
BUILT_IN: Kinds[type[Part]] = Kinds("part", KNOWN)
OWN = f"""
from dataclasses import dataclass
from {__name__} import Part

class Mine(Part):
    def act(self):
        return "mine"

class Idle(Part):
    pass

class Other:
    pass

class Wild(Mine):
    Options = dict

@dataclass(frozen=True)
class NeedyOptions:
    strength: float

class Needy(Mine):
    Options = NeedyOptions

number = 3
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a user's module and returns its path."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_parts", "broken_parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    file = tmp_path / "my_parts.py"
    file.write_text(OWN)
    (tmp_path / "broken_parts.py").write_text("1 / 0\n")
    return file


def test_built_in_and_user_defined_kinds_are_found() -> None:
    assert PARTS.load("built")().act() == "built in"
    assert PARTS.load("my_parts:Mine")().act() == "mine"


def test_only_loaded_kinds_are_imported() -> None:
    assert PARTS.place("lazy") == "no_such_module:Lazy"
    with pytest.raises(ConfigError, match="no_such_module cannot be imported"):
        PARTS.load("lazy")


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("bulit", "part: there is no 'bulit'", "did you mean built?"),
        ("x", "part: there is no 'x'", "use built, lazy, or package.module:Class for your own"),
        ("no_such_module:Mine", "part: no_such_module cannot be imported (ModuleNotFoundError", "PYTHONPATH"),
        ("broken_parts:Mine", "part: broken_parts cannot be imported (ZeroDivisionError", "correct the module"),
        ("my_parts:Mien", "part: my_parts has no Mien", "did you mean Mine?"),
        ("my_parts:Other", "part: my_parts:Other is not a subclass of Part", f"let it inherit from {__name__}.Part"),
        ("my_parts:number", "part: my_parts:number is not a subclass of Part", "let it inherit"),
        ("my_parts:Idle", "part: my_parts:Idle lacks act", "docs/develop/extending.md"),
        ("my_parts:", "part: my_parts has no ", ""),
        ("my_parts:Wild", "part: my_parts:Wild.Options is not a dataclass", "frozen dataclass"),
        ("my_parts:Needy", "part: my_parts:Needy.Options has no default for strength", "give every option a default"),
    ],
)
def test_wrong_kinds_are_refused_with_a_fix(name: str, what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PARTS.load(name)
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_user_code_is_not_imported_where_only_built_in_kinds_are_allowed() -> None:
    with pytest.raises(ConfigError, match="part: there is no 'broken_parts:Mine'") as caught:
        BUILT_IN.load("broken_parts:Mine")
    assert caught.value.fix == "use built, lazy"


def test_functions_can_be_kinds_too() -> None:
    assert imported("job", "my_parts:number") == 3


def test_the_source_of_user_code_is_part_of_keys(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest() -> dict[str, str]:
        monkeypatch.delitem(sys.modules, "my_parts", raising=False)
        return PARTS.source("my_parts:Mine")

    assert PARTS.source("built") == {}
    before = digest()
    assert digest() == before
    own.write_text(OWN + "\n# changed\n")
    assert digest() != before


@dataclass(frozen=True)
class Options:
    rate: float = 0.5
    names: list[str] = field(default_factory=list)


def test_options_are_parsed_by_their_types() -> None:
    assert read_options("options", Options, {}) == Options()
    assert read_options("options", Options, {"rate": 1, "names": ["a"]}) == Options(1.0, ["a"])


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        ({"rat": 1}, "unknown key rat in options", "did you mean rate?"),
        ({"rate": "high"}, "options.rate takes float, not high", "correct the value"),
        (
            {"names": [1]},
            "options.names, entry 1 takes str, not 1",
            "put the value in quotes, so that YAML reads it as text",
        ),
    ],
)
def test_unknown_options_and_wrong_types_are_refused(given: dict[str, Any], what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options("options", Options, given)
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_a_kind_without_options_takes_none() -> None:
    assert PARTS.read("built", {}) is None
    with pytest.raises(ConfigError, match="unknown key rate in built"):
        PARTS.read("built", {"rate": 1})


def test_options_of_a_heavy_kind_are_found_without_loading_it() -> None:
    """Reads options of `lazy` without importing its module, which would fail. Plug-in `plain` has no options."""
    kinds: Kinds[Any] = Kinds("part", {**KNOWN, "plain": "no_such_module:Plain"}, options={"lazy": f"{__name__}:Lazy"})
    assert kinds.options("lazy") is Lazy
    assert kinds.read("lazy", {"strength": 2.0}) == Lazy(2.0)
    assert kinds.options("plain") is None
    with pytest.raises(ConfigError, match="unknown key strength in plain"):
        kinds.read("plain", {"strength": 2.0})


@dataclass(frozen=True)
class Lazy:
    strength: float = 1.0
