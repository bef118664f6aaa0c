"""Expands `~` at the beginning of a path that a user wrote."""

import os
from pathlib import Path

from adapt.support.errors import ConfigError


def user_path(path: str | os.PathLike[str]) -> Path:
    """Returns a path in which `~` and `~name` at the beginning are replaced by the user's home folder.

    Raises:
        ConfigError: there is no user with this name, or the user has no home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: {error}", "check the path") from error
