"""What models can be given masks, said before anything runs. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.errors import ConfigError, ModelError
from adapt.method.measuring import check_prepared
from adapt.method.sets import NAMED
from adapt.model.additions.config import stored_additions
from adapt.model.layers.families import check_units


def check_masks(config: Config, model: Path, method: str, kind: str, options: Mapping[str, Any]) -> None:
    """Refuses what masks of each domain could not be trained on.

    Args:
        config: of the job.
        model: folder of the model to begin with.
        method: its `method.kind`.
        kind: of the addition.
        options: those of the addition but for the number of sets.

    Raises:
        ConfigError: the corpus is streamed, so that no prototype of a domain can be made; or the model has masks that
            were made otherwise.
        ModelError: the units of the model are not known, or it carries something else.
    """
    check_units(model)
    check_prepared(config, "the prototype of a domain", "choose another method.kind")
    for entry in stored_additions(model):
        if entry["kind"] not in (kind, NAMED):
            raise ModelError(
                f"{model} carries {entry['kind']}, and method.kind {method} cannot be trained beside them",
                "choose the model that its training began with",
            )
        for name, value in options.items():
            if entry["kind"] == kind and entry.get(name) != value:
                raise ConfigError(
                    f"method.kind {method} asks for {kind} of {name} {value!r}, but those of {model} have"
                    f" {entry.get(name)!r}",
                    f"train it as it was ({method}.{name}), or begin with a model that has none",
                )
