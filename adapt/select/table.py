"""The selections, by the name that `select.kind` calls them by."""

from typing import Any

from adapt.plugin import plugged, read_options
from adapt.select.base import Selection

SELECTIONS = {
    "random": "adapt.select.random:Random",
}
"""The class of each selection, as `module:Class`. A further one is its file, its test and a line here."""


def selection_of(kind: str, options: dict[str, Any], seed: int) -> Selection:
    """The selection of a name, or a user's own by `package.module:Class`.

    Raises:
        ConfigError: there is none of this name, it is no selection, or an option is not known or of the wrong type.
    """
    selection: type[Selection] = plugged("select.kind", kind, SELECTIONS, Selection)  # type: ignore[type-abstract]
    return selection(read_options(f"select.options of {kind}", selection.Options, options), seed)
