"""Private names of other libraries are only used in a few modules. Each of these modules uses one library's names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY = (
    "adapt/train/deepspeed_parts.py",
    "adapt/ray/private.py",
    "adapt/model/packing/flash.py",
)
"""Modules that may use private names, each with the library whose private names it may use."""
OF_PYTHON = {"_exit", "_run_exitfuncs", "_replace", "_asdict", "_fields"}
"""Names with an underscore that Python documents, or that `adapt/terminal/console.py` needs to end the process."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def touched(source: str) -> Iterator[str]:
    """Yields the private names that a file imports, or reads as attributes of objects from other modules."""
    tree = ast.parse(source)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign | ast.NamedExpr)
        if isinstance(node.target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                own.add(name)
            case ast.ImportFrom(module=str(module), level=0) if not module.startswith("adapt"):
                yield from filter(is_private, [*module.split("."), *(alias.name for alias in node.names)])
            case ast.Import():
                yield from (part for alias in node.names for part in filter(is_private, alias.name.split(".")))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own | OF_PYTHON:
            yield node.attr


def test_private_names_of_other_libraries_are_used_in_few_modules() -> None:
    found = {}
    for path in sorted((ROOT / "adapt").rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if not file.startswith(MAY) and (names := sorted({*touched(path.read_text("utf-8"))})):
            found[file] = names
    assert not found, "use the public way, or the module of that library in MAY"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch\ntorch._foreach_add_(a, b)", ["_foreach_add_"]),
        ("from ray._private import state", ["_private"]),
        ("import ray._private.node", ["_private"]),
        ("from ray.data import _StatsManager", ["_StatsManager"]),
        ("def f(model):\n    return model.config._attn_implementation", ["_attn_implementation"]),
        ("class A:\n    _x: int\n    def f(self, other):\n        return self._y + other._y + other._x", []),
        ("import os\nos._exit(1)", []),
    ],
)
def test_the_checker_recognizes_private_names(source: str, names: list[str]) -> None:
    assert list(touched(source)) == names
