"""Tests that the public functions, classes and files of the package have unique names."""

import ast
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


ENTRY = {"main"}
"""Names of functions that start programs. Several modules may define them."""


def test_public_functions_and_classes_have_unique_names():
    found = defaultdict(list)
    for file in sorted((ROOT / "adapt").rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in found.items() if len(files) > 1 and name not in ENTRY} == {}


SHARED = {"__init__.py", "method.py", "options.py", "stage.py", "table.py"}
"""File names that may occur in several folders, for example in the folder of each method."""


def test_files_have_unique_names():
    names = Counter(file.name for file in (ROOT / "adapt").rglob("*.py"))
    assert {name for name, count in names.items() if count > 1} <= SHARED
