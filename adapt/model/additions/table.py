"""The kinds of additions, and how a model gets them."""

from __future__ import annotations

import importlib
from typing import Any

from adapt.errors import ModelError
from adapt.model.additions.config import additions_of
from adapt.nearest import nearest

ADDITIONS: dict[str, str] = {
    "domains": "adapt.model.additions.domains:attach_domains",
    "plugins": "adapt.model.additions.masks:attach_plugins",
    "unit_masks": "adapt.model.additions.masks:attach_unit_masks",
    "adapters": "adapt.model.additions.adapters:attach_adapters",
    "prompts": "adapt.model.additions.prompts:attach_prompts",
    "prefixes": "adapt.model.additions.prefixes:attach_prefixes",
    "experts": "adapt.model.additions.experts:attach_experts",
    "exbert": "adapt.model.additions.exbert:attach_exbert",
}
"""What attaches each kind, as `module:function`. A further kind is its file in this folder, its test and a line here.

A function takes a model of transformers, with or without its head, and the options of its entry. It puts modules into
the base model in place, so that their parameters and buffers stand in its `state_dict`, and changes what it computes;
also under `torch.device("meta")`. config.json never names a function: that would run code of whoever made the folder.
"""


def attach_additions(model: Any, config: Any) -> None:
    """Gives a model the additions that its configuration names. Their weights are not filled.

    Args:
        model: as transformers builds it from the configuration.
        config: the configuration.

    Raises:
        ModelError: a kind or an option is not known.
    """
    for entry in additions_of(config):
        options = {name: value for name, value in entry.items() if name != "kind"}
        kind = entry["kind"]
        if kind not in ADDITIONS:
            known = ", ".join(sorted(ADDITIONS)) or "none"
            raise ModelError(
                f"there is no addition {kind!r} to a model",
                nearest(kind, ADDITIONS, f"load it with the version of dontstop that made it (known here: {known})"),
            )
        module, _, function = ADDITIONS[kind].partition(":")
        attach = getattr(importlib.import_module(module), function)
        try:
            attach(model, **options)
        except TypeError as error:  # options of another version
            raise ModelError(
                f"the addition {kind!r} cannot be attached with what config.json says of it: {error}",
                "load it with the version of dontstop that made it",
            ) from error
