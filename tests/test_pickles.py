"""The library reads nothing that can run code: it uses no pickles, and `torch.load` only for tensors."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(file for folder in ("adapt", "jobs") for file in (ROOT / folder).rglob("*.py"))
LOADERS = {"load", "loads", "Unpickler"}
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
OWN = {"adapt/train/failure.py"}
"""Modules that may unpickle. This module unpickles only its own data, to check whether an error can be sent to another
process."""


def calls(file: Path) -> Iterator[tuple[str, ast.Call]]:
    """Yields the calls of named functions in a module, each with the function's dotted name."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield ast.unparse(node.func), node


def options(call: ast.Call) -> dict[str, str]:
    return {each.arg: ast.unparse(each.value) for each in call.keywords if each.arg}


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_file_is_read_in_a_way_that_can_run_code(file: Path) -> None:
    for name, call in calls(file):
        module, _, function = name.rpartition(".")
        if name == "torch.load":
            assert options(call).get("weights_only") == "True", f"{file}:{call.lineno}"
        assert options(call).get("allow_pickle", "False") == "False", f"{file}:{call.lineno}"
        assert "trust_remote_code" not in options(call) or options(call)["trust_remote_code"] != "True"
        if module.rpartition(".")[2] in PICKLES and function in LOADERS:
            assert str(file.relative_to(ROOT)) in OWN, f"{file}:{call.lineno}"


def test_the_checker_finds_calls() -> None:
    found = [name for file in MODULES for name, _ in calls(file)]
    assert found.count("torch.load") >= 4
    assert "cloudpickle.loads" in found
