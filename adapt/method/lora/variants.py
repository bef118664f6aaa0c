"""Configures peft for the variants of LoRA, merges trained adapters, and finds intruder dimensions.

peft initializes the adapters and runs them in training. Merging turns each layer with an adapter into an ordinary
layer. Its weight is W + s B A, where s is the option `scale`. DoRA also scales each row of this weight to a trained
norm. OSF instead replaces the smallest singular directions of W by trained directions.

A weight with a low condition number stretches all directions about equally. It is least specialised, so an adapter
there should destroy least (KappaTune, arXiv 2506.16289). Training with low-rank adapters leaves intruder dimensions,
which are large singular directions that resemble no direction of the earlier weight. Scaling them down restores a part
of what was forgotten (arXiv 2410.21228).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, OSFConfig, inject_adapter_in_model
from peft.tuners.lora.config import CordaConfig
from torch import Tensor

from adapt.method.lora.method import LoraOptions, check_rank
from adapt.method.lora.moments import note_directions
from adapt.model.layers import is_transposed, layers_of
from adapt.support.errors import ModelError

BEGINNINGS: dict[str, Any] = {
    **dict.fromkeys(("lora", "dora"), True),
    **{kind: kind for kind in ("pissa", "olora", "mica", "corda")},
}
"""For each kind, peft's name for the initialization of A and B."""
UNTRANSPOSED = ("olora", "osf")
"""Kinds that peft cannot initialize if weights are stored as [inputs, outputs]."""
BASE, DOWN, UP = ".base_layer.", ".lora_A.default.", ".lora_B.default."
"""Parts that peft inserts into the names of a layer's parameters."""
LENGTHS = ".lora_magnitude_vector.default."
"""Name in peft of DoRA's norms of rows."""
DIRECTIONS = ".osf_svd_params.default."
"""Name in peft of OSF's trained directions."""
ADDED = (DOWN, UP, LENGTHS, DIRECTIONS)


def add_low_rank(model: Any, options: LoraOptions, seed: int, moments: Path | None) -> bool:
    """Freezes a model and adds low-rank matrices to its linear layers.

    Args:
        model: the model, which is changed in place. Its outputs stay the same.
        options: the method's options.
        seed: seed from which the matrices A are drawn.
        moments: for `corda`, the file of stage `moments`.

    Returns:
        Whether the model's weights are [inputs, outputs].

    Raises:
        ConfigError, ModelError: this kind cannot train the model.
    """
    layers = layers_of(model)
    parts = [f"{layer.name}.{part}" for layer in layers for part in parts_with_units(layer.pattern)]
    weights: dict[str, Any] = {name: model.get_submodule(name).weight for name in parts}
    names = best_conditioned(weights, options.layers)
    smallest = {name: min(weights[name].shape) for name in names}
    check_rank(options, min(smallest.values()))
    transposed = is_transposed(layers[0].part(layers[0].pattern.outer))
    if transposed and options.kind in UNTRANSPOSED:
        raise ModelError(
            f"lora.kind {options.kind} does not train {model.config.model_type} models, whose weights are transposed",
            "set lora.kind to lora, dora, pissa or mica",
        )
    model.requires_grad_(False)
    if moments:
        note_directions(model, names, moments, options.rank, transposed)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        inject_adapter_in_model(peft_config(options, names, smallest, transposed), model)
    return transposed


def parts_with_units(pattern: Any) -> list[str]:
    """Returns the names of a layer's linear parts without duplicates."""
    parts = (pattern.query, pattern.key, pattern.value, pattern.attention_out, *pattern.inner, pattern.outer)
    return list(dict.fromkeys(parts))


def peft_config(options: LoraOptions, names: Sequence[str], smallest: Mapping[str, int], transposed: bool) -> Any:
    """Returns peft's configuration of a variant.

    Args:
        options: the method's options.
        names: names of the linear layers.
        smallest: the smaller side of each layer's weight.
        transposed: whether weights are [inputs, outputs].
    """
    if options.kind == "osf":
        kept: dict[str, int | float] = {
            f"(^|\\.){re.escape(name)}$": side - options.rank for name, side in smallest.items()
        }
        return OSFConfig(target_modules=list(names), rank_pattern=kept)
    return LoraConfig(
        r=options.rank,
        lora_alpha=options.scale * options.rank,  # type: ignore[arg-type]  # may be a fraction
        lora_dropout=options.dropout,
        target_modules=list(names),
        fan_in_fan_out=transposed,
        init_lora_weights=BEGINNINGS[options.kind],
        use_dora=options.kind == "dora",
        corda_config=CordaConfig(corda_method="kpm") if options.kind == "corda" else None,
    )


def merged_state(state: Mapping[str, Tensor], scale: float, transposed: bool, intruders: float) -> dict[str, Tensor]:
    """Returns the weights of an ordinary model, with all adapters merged. See `merged_weight` for the arguments."""
    return {
        name.replace(BASE, "."): merged_weight(state, name, scale, transposed, intruders) if BASE in name else weight
        for name, weight in state.items()
        if not any(part in name for part in ADDED)
    }


def merged_weight(
    state: Mapping[str, Tensor], name: str, scale: float, transposed: bool, intruders: float = 1.0
) -> Tensor:
    """Returns the merged weight for a parameter of peft's layer. A bias is returned unchanged.

    Args:
        state: weights of the model with adapters, keyed by name.
        name: the parameter's name, which contains BASE.
        scale: factor of the adapters' outputs.
        transposed: whether weights are [inputs, outputs].
        intruders: factor of intruder dimensions.
    """
    weight, layer = state[name], name.partition(BASE)[0]
    if not name.endswith(f"{BASE}weight"):
        return weight
    if f"{layer}{DIRECTIONS}S_low" in state:
        return _with_directions(weight, *(state[f"{layer}{DIRECTIONS}{part}_low"] for part in "USV"))
    down, up = (f"{layer}{part}weight" for part in (DOWN, UP))
    if down not in state:
        return weight
    before = weight.T if transposed else weight
    whole = before + scale * state[up] @ state[down]
    if (lengths := state.get(f"{layer}{LENGTHS}weight")) is not None:
        whole = whole * (lengths / whole.norm(dim=1)).unsqueeze(1)
    if intruders < 1:
        whole = with_fewer_intruders(before, whole, intruders)
    return whole.T.contiguous() if transposed else whole


def _with_directions(weight: Tensor, left: Tensor, sizes: Tensor, right: Tensor) -> Tensor:
    """Replaces a weight's smallest singular directions by the trained directions `left`, `sizes` and `right`."""
    first, size, last = torch.linalg.svd(weight, full_matrices=False)
    first_small = len(size) - len(sizes)
    smallest: Tensor = (first[:, first_small:] * size[first_small:]) @ last[first_small:]
    return weight + (left * sizes) @ right - smallest


LARGEST = 10
"""Number of a weight's largest singular directions that are checked for intruders."""
SIMILAR = 0.5
"""Cosine below which two directions do not resemble each other.

A direction is an intruder if it resembles no direction of the earlier weight.
"""
TINY = 1e-8


def best_conditioned(weights: Mapping[str, Tensor], share: float) -> list[str]:
    """Returns the names of the weights with the lowest condition numbers, in the order of `weights`.

    Args:
        weights: two-dimensional weights, keyed by name.
        share: share of the weights to return, above 0 and at most 1. At least one name is returned.
    """
    if share == 1:
        return list(weights)
    sizes = {name: torch.linalg.svdvals(weight.detach().float()) for name, weight in weights.items()}
    conditions = {name: float(each[0] / (each[-1] + TINY)) for name, each in sizes.items()}
    chosen = {*sorted(conditions, key=lambda name: conditions[name])[: max(1, int(share * len(weights)))]}
    return [name for name in weights if name in chosen]


def with_fewer_intruders(before: Tensor, after: Tensor, kept: float) -> Tensor:
    """Scales a weight's intruder dimensions: W + (kept - 1) sum_i u_i s_i v_i^T (arXiv 2410.21228, section 5).

    Here u_i, s_i and v_i are the `LARGEST` singular directions of W. The sum is over those directions whose u_i
    resembles no left singular direction of the weight before training.

    Args:
        before: the weight before training, [outputs, inputs].
        after: the weight after training.
        kept: factor of the intruder dimensions: 1 changes nothing, 0 removes them.
    """
    first, _, _ = torch.linalg.svd(before.float(), full_matrices=False)
    left, sizes, right = torch.linalg.svd(after.float(), full_matrices=False)
    similarity = (left[:, :LARGEST].T @ first).abs().amax(1)
    new = (similarity < SIMILAR).nonzero().flatten()
    intruders: Tensor = (left[:, new] * sizes[new]) @ right[new]
    return after + (kept - 1) * intruders.to(after.dtype)
