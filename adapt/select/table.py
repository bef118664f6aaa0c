"""The selections, by the name that `select.kind` calls them by, and lists of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adapt.config import Config, section_of
from adapt.config.kinds import Kinds
from adapt.runner.key import deciding
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    from adapt.select.selection import Selection

SELECTIONS: Kinds[type[Selection]] = Kinds(
    "select.kind",
    {
        "random": "adapt.select.selection:Random",
        "dsir": "adapt.select.dsir:Dsir",
        "classifier": "adapt.select.ngram_classifier:ByClassifier",
        "knn": "adapt.select.knn:NearestNeighbours",
        "tsds": "adapt.select.tsds:TransportMass",
        "semdedup": "adapt.select.semdedup:WithoutCopies",
        "perplexity": "adapt.select.perplexity:ByPerplexity",
    },
    base="adapt.select.selection:Selection",
)
"""The selections, by the names that `select.kind` calls them by."""


def selection_of(kind: str, options: dict[str, Any], seed: int) -> Selection:
    """The selection of a name, or a user's own by `package.module:Class`.

    Raises:
        ConfigError: there is none of this name, it is no selection, or an option is not known or of the wrong type.
    """
    return SELECTIONS.load(kind)(SELECTIONS.read(kind, options), seed)


@dataclass(frozen=True)
class SelectionStep:
    """One of the selections that follow each other."""

    kind: str
    selection: Selection

    def what(self) -> dict[str, Any]:
        """Kind and options, for the key of a stage; of a user's own, its source too."""
        return {
            "way": self.kind,
            "options": self.selection.what(),
            **SELECTIONS.source(self.kind),
            **deciding(*self.selection.packages()),
        }


def steps_of(config: Config) -> tuple[SelectionStep, ...]:
    """The selections that a configuration names, in their order.

    Options are those of the section that is called like the selection; those in the list go before them.

    Raises:
        ConfigError: `select.kind` is an empty list or no list of names with options; or as `selection_of`.
    """
    kind = config.select.kind
    if not kind:
        raise ConfigError("select.kind is an empty list", f"name one or more of {', '.join(SELECTIONS)}")
    steps = []
    for name, inline in map(_named, [kind] if isinstance(kind, str) else kind):
        options = {**config.select_options.get(section_of(name), {}), **inline}
        steps.append(SelectionStep(name, selection_of(name, options, config.seed)))
    return tuple(steps)


def way_of(steps: Sequence[SelectionStep]) -> str:
    """What some selections are called in names of folders: `semdedup-knn`; a user's own by its class."""
    return "-".join(step.kind.rpartition(":")[2] for step in steps)


def _named(entry: Any) -> tuple[str, dict[str, Any]]:
    """The name and options of an entry of the list."""
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, options),) = entry.items()
        if isinstance(name, str) and isinstance(options or {}, Mapping):
            return name, dict(options or {})
    raise ConfigError(f"select.kind: cannot read {entry!r}", "write `name`, or `name: {option: value}`")
