"""The recipes and search spaces that come with the package, by name."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from adapt.show.blocks import Block, Table, TextBlock

PACKAGE = Path(__file__).resolve().parent.parent
RECIPES = (PACKAGE / "recipes", PACKAGE.parent / "jobs" / "recipes")
SPACES = (PACKAGE / "spaces", PACKAGE.parent / "tune_spaces")
"""Where they are: in an installed package, and in a clone."""


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


def recipes() -> Iterator[ShippedRecipe]:
    """All recipes by name."""
    yield from (ShippedRecipe(file) for file in _files(RECIPES, "*.yaml"))


def spaces() -> dict[str, Path]:
    """The files of all search spaces, by name."""
    return {file.stem: file for file in _files(SPACES, "*.py")}


def recipe_file(name: str) -> str:
    """The file of a recipe. A name that is no recipe's, or for which there is a file, is returned as it is."""
    known = {recipe.name: recipe.file for recipe in recipes()}
    return name if Path(name).exists() or name not in known else str(known[name])


def unless_here(shipped: Mapping[str, Path]) -> dict[str, str]:
    """Files by name, without the names for which there is a file here: a user's own file comes first."""
    return {name: str(file) for name, file in shipped.items() if not Path(name).exists()}


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
    found = [[recipe.name, recipe.about, recipe.command] for recipe in recipes()]
    described = [[name, _first_sentence(_docstring(file))] for name, file in spaces().items()]
    return [
        Table(["recipe", "what it does", "command"], found, "Recipes", words=True),
        Table(["space", "what it searches"], described, "Search spaces, for dontstop tune --space NAME", words=True),
        TextBlock("dontstop recipes NAME prints the file, to be changed"),
    ]


def _files(folders: tuple[Path, Path], pattern: str) -> list[Path]:
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    return [file for file in sorted(folder.glob(pattern)) if not file.name.startswith("_")]


def _docstring(file: Path) -> str:
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def _first_sentence(text: str) -> str:
    sentence, stop, _ = " ".join(text.split()).partition(". ")
    return f"{sentence}." if stop else sentence
