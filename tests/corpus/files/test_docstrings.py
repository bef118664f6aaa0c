"""The demo corpus: docstrings of installed packages."""

import argparse
import ast
import pathlib
import typing
from pathlib import Path

import pytest

from adapt.corpus.files.docstrings import package_sources, read_docstrings
from adapt.corpus.files.formats import Bad

SOURCE = '''
"""Of the module."""

import os

class Outer:
    """Of the class.

        Indented here.
    Not here.
    """

    def method(self):
        r"""Of the method, with \\alpha."""
        "not this string"
        return """nor this"""

    class Inner:
        """Of the inner class."""

        async def wait(self): "Of the coroutine."

def nothing():
    return 1  # no docstring

def empty():
    """   """

def formatted():
    f"""not a docstring"""

def function():
    """Of the function: naïve."""
    def nested():
        """Of the nested function."""

try:
    def in_try(): """In try."""
except ImportError:
    def in_except(): """In except."""
else:
    def in_else(): """In else."""
finally:
    def in_finally(): """In finally."""

for x in ():
    with x:
        class InFor: """In for."""
else:
    def in_for_else(): """In else of for."""

match os.name:
    case "nt":
        def in_case(): """In case."""
'''


DOCSTRINGS = [
    "Of the module.",
    "Of the class.\n\n    Indented here.\nNot here.",
    "Of the method, with \\alpha.",
    "Of the inner class.",
    "Of the coroutine.",
    "Of the function: naïve.",
    "Of the nested function.",
    *(f"In {block}." for block in ("try", "except", "else", "finally", "for", "else of for", "case")),
]


def test_all_docstrings_in_their_order_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(SOURCE, encoding="utf-8")
    texts = list(read_docstrings(tmp_path / "module.py"))
    assert texts == DOCSTRINGS
    assert not any(isinstance(text, Bad) for text in texts)


def test_the_same_as_a_walk_over_all_nodes() -> None:
    for module in (ast, argparse, pathlib, typing):
        path = Path(module.__file__)
        nodes = ast.walk(ast.parse(path.read_bytes()))
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        expected = [text for node in nodes if isinstance(node, documented) and (text := ast.get_docstring(node))]
        assert sorted(read_docstrings(path)) == sorted(expected)
        assert len(expected) > 10


def test_a_long_chain_of_branches(tmp_path: Path) -> None:
    branches = "".join(f"elif x == {number}:\n    pass\n" for number in range(2000))
    content = f'x = 1\nif x:\n    pass\n{branches}else:\n    def f():\n        """At the end."""\n'
    (tmp_path / "module.py").write_text(content)
    assert list(read_docstrings(tmp_path / "module.py")) == ["At the end."]


UNREADABLE = {
    "syntax": b"def broken(:\n",
    "encoding": b'"""\xff\xfe"""',
    "null byte": b"\x00",
    "Python 2": b"print 'x'",
    "parentheses": b"(" * 100_000,
    "depth": b"x = " + b"-" * 100_000 + b"1",
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_is_no_python_yields_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "module.py").write_bytes(content)
    assert list(read_docstrings(tmp_path / "module.py")) == []


def test_a_file_that_is_gone_yields_nothing(tmp_path: Path) -> None:
    assert list(read_docstrings(tmp_path / "module.py")) == []


def test_encoding_that_the_file_declares(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_bytes(b'# coding: latin-1\n"""Caf\xe9."""\n')
    assert list(read_docstrings(tmp_path / "module.py")) == ["Café."]


def test_other_peoples_warnings_are_not_ours(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "module.py").write_text('"""A \\d escape."""\n')
    assert list(read_docstrings(tmp_path / "module.py")) == ["A \\d escape."]
    assert not list(recwarn)


def test_sources_of_a_package(tmp_path: Path) -> None:
    record = tmp_path / "package-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text(
        'package/b.py,sha256=x,1\n"package/with, comma.py",sha256=x,1\npackage/tests/test_b.py,,\n'
        "package/data.json,,\npackage/a.py,,\n\npackage/__pycache__/a.cpython-311.pyc,,\npackage-1.0.dist-info/RECORD,,\n"
    )
    expected = ["package/b.py", "package/with, comma.py", "package/a.py"]
    assert package_sources(record) == [tmp_path / name for name in expected]
