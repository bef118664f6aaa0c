"""What somebody may have meant who wrote a name that is not known."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The fix for an unknown name: the nearest known one, else all of them.

    Args:
        name: as it was written.
        known: names.
        otherwise: what to say in place of all names where none is near.
    """
    names = sorted(known)
    near = [known for known in names if known.lower() == name.lower()] or difflib.get_close_matches(name, names, 1, 0.5)
    return f"did you mean {near[0]}?" if near else otherwise or f"use one of: {', '.join(names)}"
