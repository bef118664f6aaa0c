"""The embedders, by the name that a configuration calls them by."""

from typing import Any

from adapt.embed.base import Embedder
from adapt.model.locate import Pretrained
from adapt.plugin import plugged, read_options

EMBEDDERS = {
    "tfidf": "adapt.embed.tfidf:Tfidf",
    "static": "adapt.embed.static:StaticMean",
    "transformer": "adapt.embed.transformer:TransformerMean",
    "vampire": "adapt.embed.vampire:Vampire",
}
"""The class of each embedder, as `module:Class`. A further one is its file, its test and a line here."""


def embedder_class(kind: str, field: str = "select.embedder") -> type[Embedder]:
    """The class of an embedder: one of EMBEDDERS, or a user's own by `package.module:Class`.

    Args:
        kind: the name.
        field: of the configuration that gives it, for messages.

    Raises:
        ConfigError: there is none of this name, or it is no embedder.
    """
    return plugged(field, kind, EMBEDDERS, Embedder)  # type: ignore[type-abstract]


def embedder_of(
    kind: str, options: dict[str, Any], seed: int, pretrained: Pretrained | None = None, field: str = "select.embedder"
) -> Embedder:
    """An embedder with its options.

    Raises:
        ConfigError: there is none of this name, it is no embedder, or an option is not known or of the wrong type.
    """
    found = embedder_class(kind, field)
    return found(read_options(kind, found.Options, options), seed, pretrained)
