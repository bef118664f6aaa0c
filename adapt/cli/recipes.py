"""What the recipes and search spaces are that come with the package, and their names on the command line."""

import ast
from dataclasses import dataclass
from pathlib import Path

from adapt.shipped import recipes, spaces
from adapt.show.blocks import Block, Table, TextBlock


@dataclass(frozen=True)
class ShippedRecipe:
    """A configuration, or a chain of stages, that comes with the package."""

    file: Path

    @property
    def name(self) -> str:
        """What the command calls it."""
        return self.file.stem

    @property
    def is_chain(self) -> bool:
        """Whether it is a chain, to be given to `dontstop chain run`."""
        return "\nstages:" in self.file.read_text(encoding="utf-8")

    @property
    def about(self) -> str:
        """Its first sentence: the comment that it begins with."""
        lines = []
        for line in self.file.read_text(encoding="utf-8").splitlines():
            if not line.startswith("#") or line.startswith("#   "):
                break
            lines.append(line.removeprefix("# ").partition("    ")[0])
        return _first_sentence(" ".join(lines))

    @property
    def command(self) -> str:
        """The command that runs it, without its arguments."""
        if self.is_chain:
            return f"dontstop chain run {self.name}"
        job = {"sequence": "sequence"}.get(self.name, "dapt")
        return "dontstop demo" if self.name == "demo" else f"dontstop {job} --config {self.name}"


def with_files(arguments: list[str], option: str, file_of: dict[str, str]) -> list[str]:
    """A command line with the values of an option replaced by files, where they are names.

    Args:
        arguments: of the command.
        option: such as `--config`.
        file_of: files by name.
    """
    replaced = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        name, equals, value = argument.partition("=")
        if before == option:
            argument = file_of.get(argument, argument)
        elif name == option and equals:
            argument = f"{option}={file_of.get(value, value)}"
        replaced.append(argument)
    return replaced


def shipped_blocks() -> list[Block]:
    """A table of the recipes and one of the spaces."""
    found = [[recipe.name, recipe.about, recipe.command] for recipe in map(ShippedRecipe, recipes().values())]
    described = [[name, _first_sentence(_docstring(file))] for name, file in spaces().items()]
    return [
        Table(["recipe", "what it does", "command"], found, "Recipes", words=True),
        Table(["space", "what it searches"], described, "Search spaces, for dontstop tune --space NAME", words=True),
        TextBlock("dontstop recipes NAME prints the file, to be changed"),
    ]


def _docstring(file: Path) -> str:
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def _first_sentence(text: str) -> str:
    sentence, stop, _ = " ".join(text.split()).partition(". ")
    return f"{sentence}." if stop else sentence
