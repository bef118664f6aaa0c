"""Training of exBERT's module alone: the smaller layers, their gates, and the rows of the tokens that came with it.

A row of the embeddings is a part of a parameter, so the whole table is handed to the optimizer, its other rows held.
"""

from __future__ import annotations

from typing import Any

from adapt.errors import ModelError
from adapt.model.additions.config import additions_of
from adapt.model.additions.exbert import EXBERT, trained_parts
from adapt.model.layers.held import hold_rows


def train_module_alone(model: Any) -> None:
    """Freezes all of a model but what exBERT has added, in place.

    Args:
        model: with its head, before an engine wraps it.

    Raises:
        ModelError: it has no module.
    """
    entry = next((each for each in additions_of(model.config) if each["kind"] == EXBERT), None)
    if entry is None:
        raise no_module(type(model).__name__)
    model.requires_grad_(False)
    for part in trained_parts(model):
        part.requires_grad_(True)
    head = model.get_output_embeddings()
    tables = (model.get_input_embeddings().weight, head.weight, head.bias)  # tied ones are one
    for table in {id(table): table for table in tables if table is not None}.values():
        hold_rows(table, entry["first_new"])


def no_module(what: str) -> ModelError:
    """The error for a model without exBERT's module."""
    return ModelError(
        f"freeze.all_but_module trains exBERT's module alone, and {what} has none",
        "begin with a model that jobs/vocabulary.py extend has made with vocabulary.module exbert",
    )
