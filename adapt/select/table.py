"""Finds selections by their names in `select.kind`, and reads lists of selections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adapt.config import Config, section_of
from adapt.config.kinds import Kinds
from adapt.runner.stage import deciding
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    from adapt.select.selection import Selection

SELECTIONS: Kinds[type[Selection]] = Kinds(
    "select.kind",
    {
        "random": "adapt.select.selection:Random",
        "dsir": "adapt.select.ngram_selections:Dsir",
        "classifier": "adapt.select.ngram_selections:ByClassifier",
        "knn": "adapt.select.vector_search:NearestNeighbours",
        "tsds": "adapt.select.tsds:TransportMass",
        "semdedup": "adapt.select.semdedup:WithoutCopies",
        "perplexity": "adapt.select.perplexity:ByPerplexity",
    },
    base="adapt.select.selection:Selection",
)
"""The built-in selections, keyed by their name in `select.kind`."""


def selection_of(kind: str, options: dict[str, Any], seed: int) -> Selection:
    """Creates a built-in selection from its name, or a user's own selection from `package.module:Class`.

    Raises:
        ConfigError: no selection has this name, the class is not a selection, or an option is unknown or of the wrong
            type.
    """
    return SELECTIONS.load(kind)(SELECTIONS.read(kind, options), seed)


@dataclass(frozen=True)
class SelectionStep:
    """An entry of `select.kind`: a selection, with the name by which it was found."""

    kind: str
    selection: Selection

    def what(self) -> dict[str, Any]:
        """Returns kind and options for the key of a stage.

        For a user's own selection, the result includes the source code.
        """
        return {
            "way": self.kind,
            "options": self.selection.what(),
            **SELECTIONS.source(self.kind),
            **deciding(*self.selection.packages()),
        }


def steps_of(config: Config) -> tuple[SelectionStep, ...]:
    """Returns the selections that a configuration names, in order.

    Options come from the section with the selection's name; options in the list take precedence.

    Raises:
        ConfigError: `select.kind` is an empty list, or an entry is not a name with options; or in the cases listed at
            `selection_of`.
    """
    kind = config.select.kind
    if not kind:
        raise ConfigError("select.kind is an empty list", f"name one or more of {', '.join(SELECTIONS)}")
    steps = []
    for name, inline in map(_named, [kind] if isinstance(kind, str) else kind):
        options = {**config.select_options.get(section_of(name), {}), **inline}
        steps.append(SelectionStep(name, selection_of(name, options, config.seed)))
    return tuple(steps)


def selections_name(steps: Sequence[SelectionStep]) -> str:
    """Returns the selections' names joined for the name of a folder, such as `semdedup-knn`.

    A user's own selection is named by its class.
    """
    return "-".join(step.kind.rpartition(":")[2] for step in steps)


def _named(entry: Any) -> tuple[str, dict[str, Any]]:
    """Returns the name and options of an entry of the list."""
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, options),) = entry.items()
        if isinstance(name, str) and isinstance(options or {}, Mapping):
            return name, dict(options or {})
    raise ConfigError(f"select.kind: cannot read {entry!r}", "write `name`, or `name: {option: value}`")
