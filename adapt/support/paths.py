"""Finds the recipes and search spaces that come with the package, and expands `~` in paths that users write."""

import os
from collections.abc import Mapping
from pathlib import Path

from adapt.support.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
RECIPES = (PACKAGE / "recipes", PACKAGE.parent / "jobs" / "recipes")
SPACES = (PACKAGE / "spaces", PACKAGE.parent / "tune_spaces")
"""Folders of search spaces in an installed package and in a clone. `RECIPES` has the folders of recipes."""


def recipes() -> dict[str, Path]:
    """Returns the files of all recipes, keyed by name."""
    return _files(RECIPES, "*.yaml")


def spaces() -> dict[str, Path]:
    """Returns the files of all search spaces, keyed by name."""
    return _files(SPACES, "*.py")


def recipe_file(name: str) -> str:
    """Returns the file of a recipe, given its name.

    Returns the name unchanged if there is no such recipe, or if a file in the current folder has this name.
    """
    return unless_here(recipes()).get(name, name)


def space_file(name: str) -> str:
    """Returns the file of a search space, given its name.

    Returns the name unchanged if there is no such search space, or if a file in the current folder has this name.
    """
    return unless_here(spaces()).get(name, name)


def unless_here(shipped: Mapping[str, Path]) -> dict[str, str]:
    """Returns the shipped files, keyed by name. Leaves out a name if a file in the current folder has it.

    In this case, the user's own file is used.
    """
    return {name: str(file) for name, file in shipped.items() if not Path(name).is_file()}


def user_path(path: str | os.PathLike[str]) -> Path:
    """Returns a path in which `~` and `~name` at the beginning are replaced by the user's home folder.

    Raises:
        ConfigError: there is no user with this name, or the user has no home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: {error}", "check the path") from error


def _files(folders: tuple[Path, Path], pattern: str) -> dict[str, Path]:
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    return {file.stem: file for file in sorted(folder.glob(pattern)) if not file.name.startswith("_")}
