"""Loads models for other libraries, which pad texts of a batch and do not pack them, and counts computed tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from adapt.evaluate.evaluation_task import Ready, device_of_task
from adapt.model.load import check_complete, check_direction, model_class, read_weights
from adapt.model.locate import Pretrained
from adapt.model.safeguards import quiet
from adapt.model.tokenizer import load_config, load_tokenizer


def plain_decoder(pretrained: Pretrained, shared_by: int = 1) -> Ready:
    """Loads a decoder with its added modules onto the device of this Ray task, with the attention of transformers.

    Raises:
        ModelError: see `adapt.model.load.load_model`.
    """
    device = device_of_task(shared_by)
    config = load_config(pretrained.model, pretrained.trust_remote_code)
    check_direction(config, True, pretrained.model)
    with quiet():
        model, report = read_weights(model_class(config), pretrained.model, config, pretrained.trust_remote_code)
        check_complete(report["missing_keys"], report["mismatched_keys"], pretrained.model)
    torch.nn.Module.to(model.eval(), device)
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    return Ready(model, tokenizer, device)


@contextmanager
def token_counter(model: torch.nn.Module) -> Iterator[list[int]]:
    """Counts the tokens that a model computes inside the block, padding included, in the list's only element."""
    count = [0]

    def add(_: torch.nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        first = positional[0] if positional else named.get("input_ids")  # sentence-transformers passes a dict
        ids = first.get("input_ids") if isinstance(first, Mapping) else first
        if isinstance(ids, torch.Tensor):
            count[0] += ids.numel()

    handle = model.register_forward_pre_hook(add, with_kwargs=True)
    try:
        yield count
    finally:
        handle.remove()
