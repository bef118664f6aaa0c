"""Public names: each function, class and file of the package has one, and no other has the same."""

import ast
from collections import Counter, defaultdict
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


SHARED = {"__init__.py", "method.py", "options.py", "stage.py", "table.py"}
"""Names of files that folders of plug-ins share."""


def test_files_have_names_of_their_own():
    names = Counter(file.name for file in (ROOT / "adapt").rglob("*.py"))
    assert {name for name, count in names.items() if count > 1} <= SHARED
