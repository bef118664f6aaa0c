"""Counts modules, lines, imports and private names in `adapt/` and prints the counts. Usage: `grain.py [ROOT]`."""

import ast
import re
import statistics
import sys
from collections import Counter
from pathlib import Path

PLUG_INS = {"__init__.py", "method.py", "options.py", "stage.py", "table.py"}
"""File names that may be repeated, because every folder of a plug-in has them."""
PRIVATE = re.compile(r"^(?:ray|deepspeed|transformers|torch|peft|datasets|tokenizers)(?:\.\w+)*\._")
"""Pattern of dotted names with a private part of a library that the project uses."""
MOST = {"modules": 400, "lines": 47_000, "import lines [%]": 5.5, "imports in functions": 150}
MOST |= {"modules with private parts": 2, "repeated file names": 20}
LEAST = {"median module [lines]": 110}


def imports(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """Returns all import statements in a syntax tree."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def in_functions(tree: ast.AST) -> set[ast.stmt]:
    """Returns the import statements inside functions."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {each for function in functions for each in imports(function)}


def names_private(tree: ast.AST) -> bool:
    """Returns whether a module imports a private part of a library, or reads it by its dotted name."""
    imported = [
        f"{getattr(node, 'module', None) or ''}.{alias.name}".strip(".")
        for node in imports(tree)
        for alias in node.names
    ]
    read = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return any(PRIVATE.match(name) and "__" not in name for name in [*imported, *read])


def measure(root: Path) -> dict[str, float]:
    """Returns the counts of a checkout's modules, lines, imports and private names, keyed by name."""
    files = sorted((root / "adapt").rglob("*.py"))
    trees = [ast.parse(file.read_text("utf-8")) for file in files]
    sizes = [len(file.read_text("utf-8").splitlines()) for file in files]
    import_lines = sum((node.end_lineno or 0) - node.lineno + 1 for tree in trees for node in imports(tree))
    names = Counter(file.name for file in files if file.name not in PLUG_INS)
    return {
        "modules": len(files),
        "lines": sum(sizes),
        "median module [lines]": statistics.median(sizes),
        "import lines [%]": round(100 * import_lines / sum(sizes), 1),
        "imports in functions": sum(len(in_functions(tree)) for tree in trees),
        "modules with private parts": sum(map(names_private, trees)),
        "repeated file names": sum(count > 1 for count in names.values()),
    }


def main() -> None:
    """Prints a row for each count, with its limit."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    for name, value in measure(root).items():
        target = f"at most {MOST[name]:,}" if name in MOST else f"at least {LEAST[name]:,}"
        print(f"{name:28} {value:>9,} {target:>18}")


if __name__ == "__main__":
    main()
