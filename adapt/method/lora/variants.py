"""Configures peft for the variants of LoRA, and merges trained adapters.

Merging turns each layer with an adapter into an ordinary layer with the weight W + s B A, where s is the option
`scale`. DoRA also scales each row of this weight to a trained norm. OSF instead replaces the smallest singular
directions of W with trained directions.

CorDA (arXiv 2406.05223, section 3) protects the knowledge that a model needs for a chosen text. C is the mean of x x^T
over the text's tokens, where x is the input of a layer with weight W. From the singular value decomposition W C = U S
V^T follows W = U S (V^T C^-1). The terms with the smallest S become the adapter, and the rest of W is frozen.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, OSFConfig, inject_adapter_in_model
from peft.tuners.lora.config import CordaConfig
from peft.tuners.lora.corda import CordaEigens
from safetensors import safe_open
from torch import Tensor, nn

from adapt.method import measurement, row_sums
from adapt.method.lora.method import LoraOptions, check_rank
from adapt.model.layers import Layer, inputs, is_transposed, layers_of
from adapt.objective.objective import Batch, Objective
from adapt.support.errors import ModelError

BEGINNINGS: dict[str, Any] = {
    **dict.fromkeys(("lora", "dora"), True),
    **{kind: kind for kind in ("pissa", "olora", "mica", "corda")},
}
"""peft's name for the initialization of A and B, keyed by variant (`lora.kind`)."""
UNTRANSPOSED = ("olora", "osf")
"""Variants (`lora.kind`) that peft cannot initialize if weights are stored as [inputs, outputs]."""
BASE, DOWN, UP = ".base_layer.", ".lora_A.default.", ".lora_B.default."
"""Substrings that peft inserts into the names of a layer's parameters: original weight, A, and B."""
LENGTHS = ".lora_magnitude_vector.default."
"""Substring of the names that peft gives to DoRA's trained norms of weight rows."""
DIRECTIONS = ".osf_svd_params.default."
"""Substring of the names that peft gives to OSF's trained directions."""
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
        ConfigError, ModelError: this variant of LoRA cannot train the model.
    """
    layers = layers_of(model)
    names = list(dict.fromkeys(name for layer in layers for _, names in _readers(layer) for name in names))
    smallest = {name: min(model.get_submodule(name).weight.shape) for name in names}
    check_rank(options, min(smallest.values()))
    transposed = is_transposed(layers[0].part(layers[0].pattern.outer))
    if transposed and options.kind in UNTRANSPOSED:
        raise ModelError(
            f"lora.kind {options.kind} does not support {model.config.model_type} models, because their weights are"
            " transposed",
            "set lora.kind to lora, dora, pissa or mica",
        )
    model.requires_grad_(False)
    if moments:
        note_directions(model, names, moments, options.rank, transposed)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        inject_adapter_in_model(peft_config(options, names, smallest, transposed), model)
    return transposed


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


def merged_state(state: Mapping[str, Tensor], scale: float, transposed: bool) -> dict[str, Tensor]:
    """Returns the weights of an ordinary model, with all adapters merged. See `merged_weight` for the arguments."""
    return {
        name.replace(BASE, "."): merged_weight(state, name, scale, transposed) if BASE in name else weight
        for name, weight in state.items()
        if not any(part in name for part in ADDED)
    }


def merged_weight(state: Mapping[str, Tensor], name: str, scale: float, transposed: bool) -> Tensor:
    """Returns the merged weight for a parameter of peft's layer. A bias is returned unchanged.

    Args:
        state: weights of the model with adapters, keyed by name.
        name: the parameter's name, which contains BASE.
        scale: factor of the adapters' outputs.
        transposed: whether weights are [inputs, outputs].
    """
    weight, layer = state[name], name.partition(BASE)[0]
    if not name.endswith(f"{BASE}weight"):
        return weight
    if f"{layer}{DIRECTIONS}S_low" in state:
        return _with_directions(weight, *(state[f"{layer}{DIRECTIONS}{part}_low"] for part in "USV"))
    down, up = (f"{layer}{part}weight" for part in (DOWN, UP))
    if down not in state:
        return weight
    whole = (weight.T if transposed else weight) + scale * state[up] @ state[down]
    if (lengths := state.get(f"{layer}{LENGTHS}weight")) is not None:
        whole = whole * (lengths / whole.norm(dim=1)).unsqueeze(1)
    return whole.T.contiguous() if transposed else whole


def _with_directions(weight: Tensor, left: Tensor, sizes: Tensor, right: Tensor) -> Tensor:
    """Replaces a weight's smallest singular directions with the trained directions `left`, `sizes` and `right`."""
    first, size, last = torch.linalg.svd(weight, full_matrices=False)
    first_small = len(size) - len(sizes)
    smallest: Tensor = (first[:, first_small:] * size[first_small:]) @ last[first_small:]
    return weight + (left * sizes) @ right - smallest


DAMPING = 0.01
"""This factor times the mean of C's diagonal is added to the diagonal to make C invertible, as in the authors' code."""


def shared_inputs(model: Any) -> dict[str, str]:
    """Maps each linear part of a layer to the first part with the same input. Key and value are mapped to query."""
    return {name: first for layer in layers_of(model) for first, names in _readers(layer) for name in names}


def _readers(layer: Layer) -> Iterable[tuple[str, list[str]]]:
    parts = layer.pattern
    for group in ((parts.query, parts.key, parts.value), (parts.attention_out,), parts.inner, (parts.outer,)):
        names = [f"{layer.name}.{part}" for part in dict.fromkeys(group)]
        yield names[0], names


def second_moments(
    model: Any, objective: Objective, batches: Iterable[tuple[int, Batch]], dtype: torch.dtype = torch.float32
) -> measurement.AddedUp:
    """Sums x x^T over all tokens for each linear part's input x, [inputs, inputs]. Parts with equal inputs share a sum.

    The sums are keyed by the names of the first parts from `shared_inputs`.

    Args:
        model: a model with its head, in evaluation mode, not wrapped.
        objective: masks the batches.
        batches: numbered batches of rows.
        dtype: precision of autocast.
    """
    device = next(iter(model.parameters())).device
    parts = {name: model.get_submodule(name) for name in dict.fromkeys(shared_inputs(model).values())}
    sums = {name: torch.zeros(inputs(part), inputs(part), device=device) for name, part in parts.items()}
    seen = dict.fromkeys(parts, 0)

    def adding_to(name: str) -> Any:
        def add(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            rows = given[0].detach().flatten(0, -2)
            with torch.autocast(device.type, enabled=False):
                sums[name].addmm_(rows.float().T, rows.float())
            seen[name] += len(rows)

        return add

    tokens, hooks = 0, [part.register_forward_pre_hook(adding_to(name)) for name, part in parts.items()]
    try:
        with torch.no_grad(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            for _, batch in batches:
                tokens += int(batch.lengths.sum())
                objective.loss(model, objective.corrupt(batch).bound_for(device))
    finally:
        for hook in hooks:
            hook.remove()
    return measurement.AddedUp(sums, max(seen.values()), tokens)


def least_directions(weight: Tensor, moment: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the `rank` terms of W = U S (V^T C^-1) with the smallest S: U, S, and V^T C^-1.

    Their shapes are [outputs, rank], [rank], and [rank, inputs].

    Args:
        weight: the weight W, [outputs, inputs].
        moment: the second moments C of the inputs, [inputs, inputs].
        rank: number of terms.
    """
    damped = moment.double()
    damped = damped + (DAMPING * damped.diagonal().mean() or 1.0) * torch.eye(
        len(damped), dtype=damped.dtype, device=damped.device
    )
    left, sizes, right = torch.linalg.svd(weight.double() @ damped, full_matrices=False)
    return left[:, -rank:], sizes[-rank:], torch.linalg.solve(damped, right[-rank:].T).T


def note_directions(model: Any, names: Sequence[str], file: Path, rank: int, transposed: bool) -> None:
    """Stores directions in each named linear layer. peft uses them to initialize the layer's low-rank adapter (CorDA).

    These directions of the layer's weight matter least for the measured text.

    Args:
        model: a model without adapters.
        names: names of the layers.
        file: file with the means of `second_moments`.
        rank: rank of the adapters.
        transposed: whether weights are [inputs, outputs].
    """
    firsts = shared_inputs(model)
    row_sums.check_sums(file, _shapes(model, firsts), "second moments")
    with safe_open(file, framework="pt") as moments:
        for name in names:
            part = model.get_submodule(name)
            weight = part.weight.detach().T if transposed else part.weight.detach()
            left, sizes, right = least_directions(weight, moments.get_tensor(firsts[name]).to(weight.device), rank)
            part.eigens = CordaEigens(sizes.float(), left.float(), right.T.float())


def _shapes(model: Any, firsts: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    widths = {name: inputs(model.get_submodule(name)) for name in firsts.values()}
    return {name: (width, width) for name, width in widths.items()}
