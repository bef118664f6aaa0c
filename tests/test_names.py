"""Public names: each function and class of the package has one, and no other has the same."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


ENTRY = {"main"}
"""What programs are called by."""


def test_public_functions_and_classes_have_names_of_their_own():
    found = defaultdict(list)
    for file in sorted((ROOT / "adapt").rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in found.items() if len(files) > 1 and name not in ENTRY} == {}
