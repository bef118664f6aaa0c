"""Resolves local paths and URLs of remote stores (via fsspec) into lists of files, and retries store errors.

Hidden files and folders are left out. Links are followed, and each real folder and file is listed once. Store accesses
that fail with a possibly temporary error are repeated after increasing pauses; other errors are raised at once.
"""

import fnmatch
import glob
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit

import fsspec

from adapt.support.errors import AdaptError, ConfigError, DataError, StorageError
from adapt.support.paths import user_path
from adapt.terminal.console import log, say_once

_NOTES = ("dataset_dict.json", "dataset_info.json", "state.json")
"""Names of the metadata files that the `datasets` library saves next to its Arrow files."""
_DESCRIPTIONS = ("readme", "license", "changelog")
_MARKUP = (".md", ".rst", ".html")
"""Names and suffixes, in lower case, of files that describe a folder. They are skipped in a folder, and are read only
if a path or pattern names them."""
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "install the extra: pip install 'dontstop[s3]'")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "install the extra: pip install 'dontstop[gs]'")),
}


def is_url(location: str) -> bool:
    """Returns whether a location is a URL and not a local path."""
    return "://" in location


def name_of(location: str) -> PurePosixPath:
    """Returns the path of a location, without the query of a URL. The suffixes of the path show the format."""
    return PurePosixPath(urlsplit(location).path if location.startswith(("http://", "https://")) else location)


def filesystem(location: str) -> tuple[Any, str]:
    """Returns the fsspec file system of a URL, with credentials from the environment, and the path in it.

    Raises:
        ConfigError: the store is not known, or its package is not installed.
    """
    protocol = location.split("://", 1)[0]
    package, fix = _PACKAGES.get(protocol, (None, "install the package that the message names"))
    if package and find_spec(package) is None:
        raise ConfigError(f"{location} needs the package {package}, which is not installed", fix)
    try:
        store_and_path: tuple[Any, str] = fsspec.url_to_fs(location)
    except ImportError as error:
        raise ConfigError(f"{location}: {error}", fix) from error
    except ValueError as error:
        raise ConfigError(
            f"{location}: {error}", "use a local path, or a URL such as s3://…, gs://… or hf://…"
        ) from error
    return store_and_path


def matches(pattern: str, suffixes: tuple[str, ...], alone: tuple[str, ...] = ()) -> list[str]:
    """Lists the files that a path, folder or glob pattern names, as absolute paths or URLs, sorted by path.

    Args:
        pattern: a path, folder or pattern, local or as URL.
        suffixes: suffixes of the files to take from a folder.
        alone: suffixes of files that are taken from a folder only if the folder has no file with another suffix of
            `suffixes`. The log says how many files are left out.

    Raises:
        DataError: there is no such file, or the folder contains none with these suffixes.
        ConfigError: the pattern is empty, which would mean the current folder, or the store is not known.
        StorageError: the store cannot be listed.
    """
    if not pattern.strip():
        raise ConfigError("a path of the corpus is empty", "write a path, or remove the empty entry")
    if pattern.startswith("file://"):
        pattern = urlsplit(pattern).path
    files, is_folder = (_remote if is_url(pattern) else _local)(pattern)
    if is_folder:
        inside = [file for file in files if name_of(file).name not in _NOTES]
        known = [file for file in inside if file.lower().endswith(suffixes) and not _describes(file)]
        files = [file for file in known if not file.lower().endswith(alone)] or known
        others = sorted(set(inside) - set(known))
        kind = "of other formats" + (
            " or about the folder itself (README, LICENSE, CHANGELOG)" if any(map(_describes, others)) else ""
        )
        such = f"{len(others)} {kind}, such as {others[0]}" if others else ""
        folder = pattern if is_url(pattern) else os.path.abspath(user_path(pattern))
        if not files:
            raise DataError(
                f"the folder {folder} holds no corpus file{such and f', but {such}'}",
                f"put files there that end in {', '.join(suffixes)}",
            )
        if left_out := sorted(set(known) - set(files)):
            say_once(
                f"folder {folder}: leaves out {len(left_out)} documents (such as PDF or HTML files), because the folder"
                f" also has {len(files)} corpus files of other formats; to read the documents too, list their paths or"
                f" a pattern, such as {left_out[0]}"
            )
        if others:
            say_once(f"folder {folder}: reads {len(files)} files, and leaves out {such}")
    if not files:
        raise DataError(f"{pattern} matches no file", _fix_of(pattern))
    return files


def _describes(file: str) -> bool:
    """Returns whether a file describes its folder, as a README does, and is not text of the corpus."""
    name = name_of(file).name.lower()
    return name.endswith(_MARKUP) and name.partition(".")[0] in _DESCRIPTIONS


def _fix_of(pattern: str) -> str:
    """Returns advice for correcting a pattern that matches no file."""
    several = [part for part in pattern.replace(",", " ").split() if part]
    if len(several) > 1 and all(is_url(part) or os.path.lexists(os.path.expanduser(part)) for part in several):
        return f"write several paths as a list: '[{', '.join(several)}]'"
    if "{" in pattern and "," in pattern:
        return "patterns with braces are not supported: write a list of paths instead: '[FIRST, SECOND]'"
    return "check the path; relative paths start at the working directory"


def _local(pattern: str) -> tuple[list[str], bool]:
    path = Path(os.path.abspath(user_path(pattern)))  # resolves `..`, so that each file has a single name
    if path.is_dir():
        return files_of(path), True
    return [str(path)] if path.is_file() else matching(path), False


def _remote(pattern: str) -> tuple[list[str], bool]:
    pattern = pattern.rstrip("/")
    files, path = filesystem(pattern)
    before = pattern.removesuffix(path)  # protocol, host and user, which fsspec omits from the paths that it returns

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
    """Returns whether a file or one of the folders in its path is hidden (begins with a dot)."""
    return any(part.startswith(".") for part in name.split("/"))


def _escaped(files: Any, pattern: str) -> str:
    """Escapes the longest folder path in a store's pattern that exists literally, so that it matches only itself."""
    parts = pattern.split("/")
    for count in range(len(parts) - 1, 0, -1):
        folder = "/".join(parts[:count])
        if glob.has_magic(folder) and files.exists(folder):
            return "/".join([glob.escape(folder), *parts[count:]])
    return pattern


def files_of(folder: Path) -> list[str]:
    """Lists the files of a folder and of the folders in it, sorted by path.

    A file with several names (links) is listed once, by its real name if the folder contains it. A broken link is
    listed too, so that reading it raises an error that names the link.

    Raises:
        DataError: a folder cannot be listed.
    """
    names: dict[str, str] = {}
    for inside in _folders(folder):
        for entry in filter(_is_file, _entries(inside)):
            place = os.path.realpath(entry)
            if place not in names or str(entry) == place:
                names[place] = str(entry)
    return sorted(names.values(), key=Path)


def matching(pattern: Path) -> list[str]:
    """Lists the paths that a pattern matches, sorted.

    If a file or folder has exactly the name of a part of the pattern, this part matches only that name.

    Raises:
        DataError: a folder cannot be listed.
    """
    return sorted(map(str, set(_matching(Path(pattern.anchor), pattern.parts[1:]))))


def _matching(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    if not parts:
        yield folder
        return
    part, rest = parts[0], parts[1:]
    if os.path.lexists(folder / part):
        yield from _matching(folder / part, rest)
    elif part == "**" and folder.is_dir():
        for inside in _folders(folder):
            yield from _matching(inside, rest) if rest else filter(_is_file, _entries(inside))
    elif glob.has_magic(part) and folder.is_dir():
        for entry in _entries(folder, hidden=part.startswith(".")):
            if fnmatch.fnmatchcase(entry.name, part) and (entry.is_dir() or not rest):
                yield from _matching(entry, rest)


def _folders(folder: Path) -> Iterator[Path]:
    """Yields a folder and all folders in it. Each real folder is yielded once, so links to parents cause no loop."""
    seen: set[str] = set()
    waiting, linked = deque([folder]), deque[Path]()
    while waiting or linked:
        # linked folders come last, so that a folder is listed by its real name and not by the name of a link
        current = (waiting or linked).popleft()
        real = os.path.realpath(current)
        if real not in seen:
            seen.add(real)
            yield current
            for entry in _entries(current):
                if entry.is_dir():
                    (linked if entry.is_symlink() else waiting).append(entry)


def _entries(folder: Path, hidden: bool = False) -> list[Path]:
    """Lists the hidden entries of a folder if `hidden`, else the entries that are not hidden. Entries are sorted."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise unreadable(str(folder), error) from error
    return [folder / name for name in names if name.startswith(".") == hidden]


def _is_file(entry: Path) -> bool:
    return entry.is_file() or (entry.is_symlink() and not entry.exists())


WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Pauses between attempts to access a store [s]."""

_FINAL = (AdaptError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_HOPELESS = (ImportError, NotImplementedError, ValueError)

T = TypeVar("T")


def retried(action: Callable[[], T], where: str) -> T:
    """Runs an action until it succeeds, with pauses of WAITS_S between attempts, and returns its result.

    Args:
        action: an access to storage that may be repeated.
        where: path, URL or dataset, for messages.

    Raises:
        StorageError: the last attempt failed, or the store does not support the action. The message names `where`.
        FileNotFoundError, PermissionError: the action raised this error. Such actions are not repeated.
    """
    for pause in (*WAITS_S, None):
        try:
            return action()
        except Exception as error:  # catches any error, because each store raises its own types of errors
            if isinstance(error, _FINAL) and not _may_pass(error):
                raise
            if pause is None or isinstance(error, _HOPELESS):
                raise _failed(where, error, tries=1 if pause else len(WAITS_S) + 1) from error
            log(f"{where}: {_words(error)}; trying again in {pause:g} s")
            time.sleep(pause)
    raise AssertionError


def is_missing(error: OSError) -> bool:
    """Returns whether an error means that a file does not exist.

    For web servers, fsspec raises FileNotFoundError on other errors too, so the HTTP status must be 404.
    """
    return isinstance(error, FileNotFoundError) and (error.__cause__ is None or _status(error.__cause__) == 404)


def unreadable(location: str, error: OSError) -> DataError:
    """Returns the error for a file that does not exist or that the user has no permission to read."""
    if is_missing(error) and not os.path.lexists(location):
        return DataError(f"{location} does not exist", "check corpus.paths")
    return DataError(f"cannot read {location}: {_words(error)}", "check the path and its permissions")


def _may_pass(error: Exception) -> bool:
    """Returns whether the error "not found" may be temporary, because the server is unreachable or failing."""
    cause = error.__cause__ if isinstance(error, FileNotFoundError) else None
    unreachable = isinstance(cause, OSError) and not isinstance(cause, _FINAL)
    return unreachable or _status(cause) >= 500


def _status(cause: BaseException | None) -> int:
    """Returns the status of the HTTP response that caused an error; 0 if there is no response."""
    return int(getattr(cause, "status", None) or getattr(getattr(cause, "response", None), "status_code", 0) or 0)


def _failed(where: str, error: Exception, tries: int) -> StorageError:
    often = f", {tries} times in a row" if tries > 1 else ""
    return StorageError(
        f"cannot read {where}: {_words(error)}{often}",
        "check the network, the store and the credentials in the environment, then run the same command again",
    )


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and not error.__cause__:
        return error.strerror
    said = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
    return " ".join(str(said).split()) or type(said).__name__
