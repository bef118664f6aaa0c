"""Which parameters the domains before use, between 0 and 1: these stay as they are (arXiv 1801.01423, equation 2).

A weight between two masked units is used as much as the less used of both: where one of them is off, it does nothing.
One that reads what has no mask is used as much as the unit that it makes. Blocking gradients would not do: Adam goes on
by its averages. So updates are blocked, by `adapt.model.layers.masked`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from adapt.model.additions.masks import PLUGINS, UNITS
from adapt.model.layers.pattern import is_transposed, layers_of
from adapt.model.layers.units import KINDS, Values, by_parameter

PARTS = "first", "second"
"""The linear layers of a plugin."""


def used_in_plugins(model: Any, used: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """How much each parameter of the plugins is used.

    Args:
        model: with plugins.
        used: how much the domains before use each unit, by the name of its masks in the model.

    Returns:
        By the parameter's name, of a shape that broadcasts to the parameter's.
    """
    by_name: dict[str, Tensor] = {}
    for layer in layers_of(model):
        for place in layer.part(PLUGINS):
            name = f"{layer.name}.{PLUGINS}.{place}"
            inner, outer = used[f"{name}.inner"], used[f"{name}.outer"]
            by_name |= {
                f"{name}.first.weight": inner[:, None],
                f"{name}.first.bias": inner,
                f"{name}.second.weight": torch.minimum(outer[:, None], inner[None, :]),
                f"{name}.second.bias": outer,
            }
    return by_name


def used_in_layers(model: Any, used: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """How much each parameter of the model's own layers is used; arguments as of `used_in_plugins`.

    The bias behind attention has no unit: it is used where any head is. Norms, embeddings and LM head are not here.
    """
    layers = layers_of(model)
    units: Values = {kind: torch.stack([used[f"{layer.name}.{UNITS}.{kind}"] for layer in layers]) for kind in KINDS}
    by_name = by_parameter(model, units)
    for number, layer in enumerate(layers):
        inner, outer = units["inner"][number], units["output"][number]
        both = torch.minimum(outer[:, None], inner[None, :])
        name, pattern = layer.name, layer.pattern
        by_name[f"{name}.{pattern.outer}.weight"] = both.T if is_transposed(layer.part(pattern.outer)) else both
        if layer.part(pattern.attention_out).bias is not None:
            by_name[f"{name}.{pattern.attention_out}.bias"] = units["head"][number].amax()[None]
    return by_name
