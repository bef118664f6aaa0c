"""Where a file lies: on this machine, or at a URL of any store that fsspec knows."""

import glob
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from adapt.console import log
from adapt.corpus.files.folders import files_of, matching
from adapt.corpus.files.retry import is_missing, retried, unreadable
from adapt.errors import ConfigError, DataError

_NOTES = ("dataset_dict.json", "dataset_info.json", "state.json")
"""What `datasets` saves beside its Arrow files."""
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "install the extra: pip install 'dontstop[s3]'")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "install the extra: pip install 'dontstop[gs]'")),
}


def is_url(location: str) -> bool:
    """Whether a location is a URL and no path of this machine."""
    return "://" in location


def name_of(location: str) -> PurePosixPath:
    """The path of a location, without the query of a URL; its suffixes tell the format."""
    return PurePosixPath(urlsplit(location).path if location.startswith(("http://", "https://")) else location)


def filesystem(location: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, with the environment's credentials, and the path in it.

    Raises:
        ConfigError: no such store is known, or its package is not installed.
    """
    import fsspec

    protocol = location.split("://", 1)[0]
    package, fix = _PACKAGES.get(protocol, (None, "install the package it names"))
    if package and find_spec(package) is None:
        raise ConfigError(f"{location} needs the package {package}, which is not installed", fix)
    try:
        store_and_path: tuple[Any, str] = fsspec.url_to_fs(location)
    except ImportError as error:
        raise ConfigError(f"{location}: {error}", fix) from error
    except ValueError as error:
        raise ConfigError(f"{location}: {error}", "use a path or s3://, gs://, hf://, …") from error
    return store_and_path


def matches(pattern: str, suffixes: tuple[str, ...]) -> list[str]:
    """Files that a path, folder or glob stands for, sorted by path; absolute, or URLs.

    Args:
        pattern: a path or URL.
        suffixes: of the files to take from a folder.

    Raises:
        DataError: there is no such file, or the folder holds none with these suffixes.
        ConfigError, StorageError: the store is not known or cannot be listed.
    """
    if pattern.startswith("file://"):
        pattern = urlsplit(pattern).path
    files, is_folder = (_remote if is_url(pattern) else _local)(pattern)
    if is_folder:
        inside = [file for file in files if name_of(file).name not in _NOTES]
        files = [file for file in inside if file.lower().endswith(suffixes)]
        others = sorted(set(inside) - set(files))
        such = f"{len(others)} of other formats, such as {others[0]}" if others else ""
        folder = pattern if is_url(pattern) else os.path.abspath(Path(pattern).expanduser())
        if not files:
            raise DataError(
                f"the folder {folder} holds no corpus file{such and f', but {such}'}",
                f"put files there that end in {', '.join(suffixes)}",
            )
        if others:
            _say(f"folder {folder}: takes {len(files)} files, and leaves out {such}")
    if not files:
        raise DataError(f"{pattern} matches no file", _fix_of(pattern))
    return files


def _fix_of(pattern: str) -> str:
    """What to do about a pattern that matches nothing."""
    several = [part for part in pattern.replace(",", " ").split() if part]
    if len(several) > 1 and all(is_url(part) or os.path.lexists(os.path.expanduser(part)) for part in several):
        return f"write several paths as a list: '[{', '.join(several)}]'"
    if "{" in pattern and "," in pattern:
        return "braces are no pattern here: write what they stand for as a list of paths: '[FIRST, SECOND]'"
    return "check the path; relative ones start at the working directory"


def _local(pattern: str) -> tuple[list[str], bool]:
    path = Path(os.path.abspath(Path(pattern).expanduser()))  # without `..`, so that a file has one name
    if path.is_dir():
        return files_of(path), True
    return [str(path)] if path.is_file() else matching(path), False


def _remote(pattern: str) -> tuple[list[str], bool]:
    pattern = pattern.rstrip("/")
    files, path = filesystem(pattern)
    before = pattern.removesuffix(path)  # whatever fsspec leaves out: the protocol, the host and who logs in there

    def listed() -> tuple[list[str], bool]:
        try:
            kind = files.info(path)["type"]
        except FileNotFoundError as error:
            if not is_missing(error):
                raise
            names = sorted(files.glob(_escaped(files, path))) if glob.has_magic(path) else []
            return [f"{before}{name}" for name in names if not files.isdir(name)], False
        if kind == "directory":
            inside = len(path.rstrip("/")) + 1
            names = [name for name in sorted(files.find(path)) if not _is_hidden(name[inside:])]
            return [f"{before}{name}" for name in names], True
        return [pattern], False

    try:
        return retried(listed, pattern)
    except OSError as error:
        raise unreadable(pattern, error) from error


def _is_hidden(name: str) -> bool:
    """Whether a file in a folder is hidden, or a folder on the way to it."""
    return any(part.startswith(".") for part in name.split("/"))


def _escaped(files: Any, pattern: str) -> str:
    """A pattern of a store with its folders as they are written, as far as they exist."""
    parts = pattern.split("/")
    for count in range(len(parts) - 1, 0, -1):
        folder = "/".join(parts[:count])
        if glob.has_magic(folder) and files.exists(folder):
            return "/".join([glob.escape(folder), *parts[count:]])
    return pattern


@cache
def _say(message: str) -> None:
    """Logs once what several stages find."""
    log(message)
