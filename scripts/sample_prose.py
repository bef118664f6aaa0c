"""Prints random docstrings, comments, messages and paragraphs of the project, for a reader who rates them.

    python scripts/sample_prose.py [PLACES] [SEED]

With the same seed and commit, the output is the same.
"""

import ast
import io
import random
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FEWEST_WORDS = 4


def of_python(text: str) -> Iterator[tuple[int, str]]:
    """Yields the docstrings, comments and error messages of a module, with their lines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield node.lineno, " / ".join(ast.unparse(argument) for argument in node.exc.args)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def of_document(text: str) -> Iterator[tuple[int, str]]:
    """Yields the paragraphs and table rows of a document, without its code blocks."""
    plain = re.sub(r"^```.*?^```$", lambda match: "\n" * match[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    line = 1
    for paragraph in plain.split("\n\n"):
        yield line + len(paragraph) - len(paragraph.lstrip("\n")), paragraph
        line += paragraph.count("\n") + 2


def of_settings(text: str) -> Iterator[tuple[int, str]]:
    """Yields the comments of a YAML, TOML or shell file."""
    for number, line in enumerate(text.splitlines(), 1):
        if (comment := line.partition("# ")[2]) and not line.startswith("#!"):
            yield number, comment


def places() -> list[str]:
    """Lists the texts of the tracked files, each with its file and line."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    readers = {".py": of_python, ".md": of_document, ".yaml": of_settings, ".toml": of_settings, ".yml": of_settings}
    found = []
    for name in listed.stdout.splitlines():
        if reader := readers.get(Path(name).suffix):
            for line, text in reader((ROOT / name).read_text("utf-8")):
                if len(text.split()) >= FEWEST_WORDS:
                    found.append(f"{name}:{line}\n{text.strip()}")
    return found


def main(count: int = 60, seed: int = 2026) -> None:
    """Prints `count` random texts."""
    for number, place in enumerate(random.Random(seed).sample(places(), count), 1):
        print(f"--- {number}. {place}\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
