"""Switches off techniques of the training core, to measure how much each technique gains. Only benchmarks use this."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

TECHNIQUES = {
    "head": "LM head at predicted positions only (off: at every position)",
    "documents": "attention inside documents (off: over whole rows)",
    "own attention": "our CPU attention (off: torch's scaled dot product attention)",
    "dropout": "quick dropout (off: torch's)",
    "bf16": "bf16 autocast (off: fp32)",
    "packing": "no padding (off: a document a row, padded to the longest)",
}


@contextmanager
def switched_off(name: str | None) -> Iterator[None]:
    """Switches off one technique inside the block. The benchmark switches `bf16` and `packing` off by settings."""
    with ExitStack() as stack:
        for target, value in _changes(name):
            stack.enter_context(patch(target, value))
        yield


def _changes(name: str | None) -> list[tuple[str, Any]]:
    if name == "head":
        return [("adapt.objective.objective.loss_at", _loss_with_the_head_everywhere)]
    if name == "documents":
        return [("adapt.objective.objective.Packed.of", _rows_as_documents())]
    if name == "own attention":
        return [("adapt.model.packing.attention._attend", _torch_attention)]
    if name == "dropout":
        from torch.nn.functional import dropout

        return [
            ("adapt.train.model_options.use_quick_dropout", lambda model: None),
            ("adapt.model.packing.attention.quick_dropout", lambda values, p: dropout(values, p)),
        ]
    return []


def _loss_with_the_head_everywhere(model: Any, packed: Any, positions: Any, targets: Any) -> Any:
    import torch

    from adapt.model.sparse_prediction import predict_at

    logits = predict_at(model, packed, torch.arange(packed.tokens, device=positions.device))
    return torch.nn.functional.cross_entropy(logits[positions].float(), targets, reduction="sum")


def _rows_as_documents() -> Any:
    import torch

    from adapt.model.packing.packed import Packed

    of = Packed.of

    def whole(input_ids: Any, real: Any, starts: Any) -> Any:
        if len(input_ids) == 1:  # loading a model checks with one row that documents are isolated; this check must pass
            return of(input_ids, real, starts)
        begins = torch.zeros_like(starts)
        begins[:, 0] = True
        return of(input_ids, real, begins)

    return whole


def _torch_attention(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scaling: float | None
) -> Any:
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale=scaling)
