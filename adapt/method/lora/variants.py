"""Variants of LoRA in peft: what each asks of peft, what its additions make of a weight, and what singular values say.

All of them leave an ordinary weight: W + s B A, or for DoRA with rows of a length of their own, or for OSF with other
small singular directions. The arithmetic of training and of the beginning is peft's.

Weights of a low condition number stretch no direction much more than another, so they have specialised least, and
additions there should destroy least (KappaTune, arXiv 2506.16289). After training, low-rank additions leave weights
with intruder dimensions: large singular directions that are similar to none of the weight before. What was forgotten
comes back in part where these are scaled down (arXiv 2410.21228).
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
"""How A and B begin, as peft calls it."""
UNTRANSPOSED = ("olora", "osf")
"""Kinds whose beginning peft does not know for weights that are [inputs, outputs]."""
BASE, DOWN, UP = ".base_layer.", ".lora_A.default.", ".lora_B.default."
"""What peft puts into the names of a layer's parameters."""
LENGTHS = ".lora_magnitude_vector.default."
"""DoRA's lengths of rows."""
DIRECTIONS = ".osf_svd_params.default."
"""OSF's trained directions."""
ADDED = (DOWN, UP, LENGTHS, DIRECTIONS)


def add_low_rank(model: Any, options: LoraOptions, seed: int, moments: Path | None) -> bool:
    """Freezes a model and adds matrices to its linear layers.

    Args:
        model: changed in place; what it computes stays.
        options: of the method.
        seed: by which A is drawn.
        moments: for `corda`, the file of stage `moments`.

    Returns:
        Whether its weights are [inputs, outputs].

    Raises:
        ConfigError, ModelError: this kind cannot train it.
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
    """The names of a layer's linear parts, each once."""
    parts = (pattern.query, pattern.key, pattern.value, pattern.attention_out, *pattern.inner, pattern.outer)
    return list(dict.fromkeys(parts))


def peft_config(options: LoraOptions, names: Sequence[str], smallest: Mapping[str, int], transposed: bool) -> Any:
    """What peft is asked for.

    Args:
        options: of the method.
        names: the linear layers.
        smallest: the smaller side of each one's weight.
        transposed: whether weights are [inputs, outputs].
    """
    if options.kind == "osf":
        kept: dict[str, int | float] = {
            f"(^|\\.){re.escape(name)}$": side - options.rank for name, side in smallest.items()
        }
        return OSFConfig(target_modules=list(names), rank_pattern=kept)
    return LoraConfig(
        r=options.rank,
        lora_alpha=options.scale * options.rank,  # type: ignore[arg-type]  # need not be whole
        lora_dropout=options.dropout,
        target_modules=list(names),
        fan_in_fan_out=transposed,
        init_lora_weights=BEGINNINGS[options.kind],
        use_dora=options.kind == "dora",
        corda_config=CordaConfig(corda_method="kpm") if options.kind == "corda" else None,
    )


def merged_state(state: Mapping[str, Tensor], scale: float, transposed: bool, intruders: float) -> dict[str, Tensor]:
    """The weights of an ordinary model. Arguments as of `merged_weight`."""
    return {
        name.replace(BASE, "."): merged_weight(state, name, scale, transposed, intruders) if BASE in name else weight
        for name, weight in state.items()
        if not any(part in name for part in ADDED)
    }


def merged_weight(
    state: Mapping[str, Tensor], name: str, scale: float, transposed: bool, intruders: float = 1.0
) -> Tensor:
    """What the weight of this name in peft's layer becomes in an ordinary one; biases and others stay.

    Args:
        state: of the model with additions.
        name: with BASE in it.
        scale: of the additions.
        transposed: whether weights are [inputs, outputs].
        intruders: what is left of intruder dimensions.
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
    """A weight with other directions in place of its smallest ones, which peft keeps out of the state."""
    first, size, last = torch.linalg.svd(weight, full_matrices=False)
    place = len(size) - len(sizes)
    smallest: Tensor = (first[:, place:] * size[place:]) @ last[place:]
    return weight + (left * sizes) @ right - smallest


LARGEST = 10
"""Directions of a weight that are looked at."""
ALIKE = 0.5
"""A direction with a smaller cosine to all of the weight before is an intruder."""
TINY = 1e-8


def best_conditioned(weights: Mapping[str, Tensor], share: float) -> list[str]:
    """The names of a share of some weights, one at least: those with the lowest condition numbers, in their old order.

    Args:
        weights: two dimensions each.
        share: above 0, at most 1.
    """
    if share == 1:
        return list(weights)
    sizes = {name: torch.linalg.svdvals(weight.detach().float()) for name, weight in weights.items()}
    conditions = {name: float(each[0] / (each[-1] + TINY)) for name, each in sizes.items()}
    chosen = {*sorted(conditions, key=lambda name: conditions[name])[: max(1, int(share * len(weights)))]}
    return [name for name in weights if name in chosen]


def with_fewer_intruders(before: Tensor, after: Tensor, kept: float) -> Tensor:
    """A weight whose intruder dimensions are scaled: W + (kept - 1) sum_i u_i s_i v_i^T (arXiv 2410.21228, section 5).

    The sum is over those of its LARGEST directions whose u_i is like none of the left directions of the weight before.

    Args:
        before: [outputs, inputs].
        after: the same once it has been trained.
        kept: 1 changes nothing, 0 takes them away.
    """
    first, _, _ = torch.linalg.svd(before.float(), full_matrices=False)
    left, sizes, right = torch.linalg.svd(after.float(), full_matrices=False)
    alike = (left[:, :LARGEST].T @ first).abs().amax(1)
    found = (alike < ALIKE).nonzero().flatten()
    intruders: Tensor = (left[:, found] * sizes[found]) @ right[found]
    return after + (kept - 1) * intruders.to(after.dtype)
