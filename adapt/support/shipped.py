"""Where the recipes and search spaces are that come with the package."""

from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
RECIPES = (PACKAGE / "recipes", PACKAGE.parent / "jobs" / "recipes")
SPACES = (PACKAGE / "spaces", PACKAGE.parent / "tune_spaces")
"""Folders: in an installed package, and in a clone."""


def recipes() -> dict[str, Path]:
    """The files of all recipes, by name."""
    return _files(RECIPES, "*.yaml")


def spaces() -> dict[str, Path]:
    """The files of all search spaces, by name."""
    return _files(SPACES, "*.py")


def recipe_file(name: str) -> str:
    """The file of a recipe. A name that is no recipe's, or for which there is a file, is returned as it is."""
    return unless_here(recipes()).get(name, name)


def space_file(name: str) -> str:
    """The file of a search space. A name that is no space's, or for which there is a file, is returned as it is."""
    return unless_here(spaces()).get(name, name)


def unless_here(shipped: Mapping[str, Path]) -> dict[str, str]:
    """Files by name, without the names for which there is a file here: a user's own file comes first."""
    return {name: str(file) for name, file in shipped.items() if not Path(name).is_file()}


def _files(folders: tuple[Path, Path], pattern: str) -> dict[str, Path]:
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    return {file.stem: file for file in sorted(folder.glob(pattern)) if not file.name.startswith("_")}
