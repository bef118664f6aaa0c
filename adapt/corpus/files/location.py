"""Where a file lies: on this machine, or at a URL of any store that fsspec knows."""

import glob
import os
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

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
        files = [file for file in files if file.lower().endswith(suffixes) and name_of(file).name not in _NOTES]
    if is_folder and not files:
        folder = pattern if is_url(pattern) else os.path.abspath(Path(pattern).expanduser())
        raise DataError(
            f"the folder {folder} holds no corpus file", f"put files there that end in {', '.join(suffixes)}"
        )
    if not files:
        raise DataError(f"{pattern} matches no file", "check the path; relative ones start at the working directory")
    return files


def _local(pattern: str) -> tuple[list[str], bool]:
    path = Path(os.path.abspath(Path(pattern).expanduser()))  # without `..`, so that a file has one name
    if path.is_dir():
        return [str(file) for file in sorted(path.rglob("*")) if file.is_file()], True
    return [str(path)] if path.is_file() else sorted(glob.glob(str(path), recursive=True)), False


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
            names = sorted(files.glob(path)) if glob.has_magic(path) else []
            return [f"{before}{name}" for name in names if not files.isdir(name)], False
        if kind == "directory":
            return [f"{before}{name}" for name in sorted(files.find(path))], True
        return [pattern], False

    try:
        return retried(listed, pattern)
    except OSError as error:
        raise unreadable(pattern, error) from error
