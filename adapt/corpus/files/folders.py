"""What folders and patterns of this machine stand for.

Hidden files and folders are left out. Links are followed, and each real folder and file comes once.
"""

import fnmatch
import glob
import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from adapt.corpus.files.retry import unreadable


def files_of(folder: Path) -> list[str]:
    """The files of a folder and of the folders in it, sorted by path.

    A file that several links lead to comes once, by its own name if that is among them. A link to nowhere is listed,
    so that reading it fails by name.

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
    """The paths that a pattern matches, sorted. A part of it that exists as it is written is no pattern.

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
    """A folder and those inside. Each real one comes once, so a link to a folder above is no endless loop."""
    seen: set[str] = set()
    waiting, linked = deque([folder]), deque[Path]()
    while waiting or linked:
        at = (waiting or linked).popleft()  # links come last, so that a folder goes by its own name
        place = os.path.realpath(at)
        if place not in seen:
            seen.add(place)
            yield at
            for entry in _entries(at):
                if entry.is_dir():
                    (linked if entry.is_symlink() else waiting).append(entry)


def _entries(folder: Path, hidden: bool = False) -> list[Path]:
    """What is in a folder, sorted; either what is hidden or what is not."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise unreadable(str(folder), error) from error
    return [folder / name for name in names if name.startswith(".") == hidden]


def _is_file(entry: Path) -> bool:
    return entry.is_file() or (entry.is_symlink() and not entry.exists())
