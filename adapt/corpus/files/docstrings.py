"""The built-in demo corpus: docstrings of the installed packages, technical English that every machine here has."""

import ast
import csv
import warnings
from collections.abc import Iterator
from pathlib import Path

from adapt.corpus.files.formats import Bad

_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
"""Fields of syntax nodes that hold statements, in their order in the source."""


def package_sources(record: Path) -> list[Path]:
    """The Python files of an installed package, in the order of its RECORD, without its tests."""
    site_packages = record.parent.parent
    with record.open(newline="", encoding="utf-8") as file:
        names = [row[0] for row in csv.reader(file) if row]
    return [site_packages / name for name in names if name.endswith(".py") and "/tests/" not in name]


def read_docstrings(path: Path) -> Iterator[str | Bad]:
    """The docstrings of a module and of its classes and functions, in their order.

    A file that this Python cannot parse (a template, say) is no text of ours: it yields nothing.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's escape sequences
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # the last is how a too deep one is refused
        return
    yield from _docstrings(tree)


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Descends into blocks only, not into expressions: docstrings are nowhere else, and it is much faster."""
    waiting: list[ast.AST] = [tree]  # no recursion, since every `elif` of a chain lies in the one before
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text
        waiting += reversed([inner for block in _BLOCKS for inner in getattr(node, block, ())])
