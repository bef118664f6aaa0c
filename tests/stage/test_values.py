"""Tests that kinds of stages and their results are frozen dataclasses, and that stages are never changed."""

import ast
import importlib
import inspect
from collections import Counter
from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from adapt.runner import Stage

ROOT = Path(__file__).resolve().parents[2]
FIXED = {"inputs", "key", "result_type", "__eq__", "__hash__"}
"""Names that kinds of stages inherit and must not define."""


def modules(folder: str) -> list[str]:
    return sorted(".".join(file.relative_to(ROOT).with_suffix("").parts) for file in (ROOT / folder).rglob("*.py"))


def kinds_in(module: str) -> list[type[Stage[Any]]]:
    found = vars(importlib.import_module(module)).values()
    return [each for each in found if isinstance(each, type) and issubclass(each, Stage) and each.__module__ == module]


KINDS = [
    kind
    for folder in ("adapt/stage", "adapt/method", "adapt/tuning", "adapt/chain")
    for module in modules(folder)
    for kind in kinds_in(module)
]


def names(kinds: list[type[Stage[Any]]]) -> list[str]:
    return [kind.__name__ for kind in kinds]


def test_all_kinds_of_stages_are_checked() -> None:
    """Every class in adapt/ that inherits from `Stage` must be in KINDS, even if it is in another folder."""
    found = [
        node.name
        for file in sorted((ROOT / "adapt").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Stage[") for base in node.bases)
    ]
    assert sorted(found) == sorted(names(KINDS))
    assert len(found) > 15


@pytest.mark.parametrize("kind", KINDS, ids=names(KINDS))
def test_a_result_is_shown_with_its_record(kind: type[Stage[Any]]) -> None:
    """Reports call `blocks` of every result with the record of its stage."""
    blocks = getattr(kind.result_type(), "blocks", None)
    assert blocks is None or list(inspect.signature(blocks).parameters) == ["self", "record"]


@pytest.mark.parametrize("kind", KINDS, ids=names(KINDS))
def test_a_kind_is_a_frozen_dataclass_that_inherits_from_stage_alone(kind: type[Stage[Any]]) -> None:
    parameters: Any = vars(kind)["__dataclass_params__"]
    assert kind.__bases__ == (Stage,)
    assert (parameters.frozen, parameters.eq) == (True, False)  # stages are compared by key, as defined in `Stage`
    assert fields(kind)[0].name == "name"  # type: ignore[arg-type]
    assert {"what", "run"} <= vars(kind).keys()
    assert kind.__eq__ is Stage.__eq__
    assert not FIXED & vars(kind).keys()
    assert not getattr(kind, "__abstractmethods__", None)


@pytest.mark.parametrize("kind", KINDS, ids=names(KINDS))
def test_a_kind_declares_its_name_and_its_version(kind: type[Stage[Any]]) -> None:
    assert isinstance(vars(kind)["kind"], str)
    assert type(kind.version) is int
    assert kind.version >= 1
    assert not {"kind", "version"} & {each.name for each in fields(kind)}  # type: ignore[arg-type]


def test_kinds_of_the_same_folder_share_version_and_result() -> None:
    """Only the folder of `prepare` has several kinds of stages (three).

    If only one kind's version were raised, old results of the other two kinds would still be used.
    """
    alike: dict[str, set[tuple[int, type]]] = {}
    for kind in KINDS:
        alike.setdefault(kind.kind, set()).add((kind.version, kind.result_type()))
    assert {kind: found for kind, found in alike.items() if len(found) > 1} == {}
    assert {name: number for name, number in Counter(each.kind for each in KINDS).items() if number > 1} == {
        "prepare": 3
    }


@pytest.mark.parametrize("kind", KINDS, ids=names(KINDS))
def test_its_result_is_a_frozen_dataclass(kind: type[Stage[Any]]) -> None:
    result = kind.result_type()
    assert isinstance(result, type)
    assert is_dataclass(result)
    assert vars(result)["__dataclass_params__"].frozen


@pytest.mark.parametrize("kind", KINDS, ids=names(KINDS))
def test_no_field_can_be_set_once_it_is_made(kind: type[Stage[Any]]) -> None:
    stage = object.__new__(kind)
    for name in ("name", fields(kind)[-1].name, "key", "novelty"):  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            setattr(stage, name, "other")
        with pytest.raises(FrozenInstanceError):
            delattr(stage, name)


SETTING = {"setattr", "delattr", "copy", "copy.copy"}


def assignments(source: str) -> list[str]:
    """Returns the code of all assignments to attributes of existing objects."""
    found = []
    for node in ast.walk(ast.parse(source)):
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete | ast.For | ast.withitem):
            parts = [part for target in targets if target for part in ast.walk(target)]
            found += [
                ast.unparse(part)
                for part in parts
                if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store | ast.Del)
            ]
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("setattr", "delattr", "copy", "copy.copy") or called.endswith(
                ("__setattr__", "__dict__.update")
            ):
                found.append(ast.unparse(node))
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            value = ast.unparse(node.value)
            found += [ast.unparse(node)] if value.startswith("vars(") or value.endswith(".__dict__") else []
    return found


@pytest.mark.parametrize("module", [*modules("adapt/stage"), *modules("adapt/job"), "adapt.model.start"])
def test_objects_in_stages_are_not_changed_after_they_are_made(module: str) -> None:
    file = ROOT / module.replace(".", "/")
    assert assignments(file.with_suffix(".py").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "self.a = 1",
        "self.a += 1",
        "self.a: int = 1",
        "del self.a",
        "a, self.b = 1, 2",
        "for self.a in b: ...",
        "setattr(self, 'a', 1)",
        "object.__setattr__(self, 'a', 1)",
        "vars(self)['a'] = 1",
        "self.__dict__['a'] = 1",
        "self.__dict__.update(a=1)",
        "other = copy(self)",
    ],
)
def test_every_way_to_set_an_attribute_is_detected(source: str) -> None:
    assert assignments(source) != []


def test_code_that_sets_no_attribute_passes() -> None:
    assert (
        assignments("a = self.b\nc[self.d] = self.e\nf: int = self.g\nfor h in self.i: ...\nreplace(self, a=1)") == []
    )
