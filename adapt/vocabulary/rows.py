"""The rows of new tokens in the embeddings and the head of a model: how many there are, and what they begin with."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from adapt.model.quiet import quiet

Pieces = Sequence[Sequence[int]]
Rows = Callable[[Tensor, Pieces, torch.Generator], Tensor]
"""Takes a table [V, ...], for each new token its old pieces, and a source of random numbers; gives the new rows."""


def mean_subword(table: Tensor, pieces: Pieces, draws: torch.Generator) -> Tensor:
    """The mean of the rows of a token's old pieces. Of the head it makes the logit the mean of theirs."""
    return torch.stack([table[list(each)].mean(0) for each in pieces])


def normal_rows(table: Tensor, pieces: Pieces, draws: torch.Generator) -> Tensor:
    """Draws from a normal distribution with mean and deviation of the table's rows, each dimension by itself."""
    noise = torch.randn((len(pieces), *table.shape[1:]), generator=draws, dtype=table.dtype)
    return table.mean(0) + noise * table.std(0)


def zero_rows(table: Tensor, pieces: Pieces, draws: torch.Generator) -> Tensor:
    """Zeros."""
    return table.new_zeros((len(pieces), *table.shape[1:]))


def _mean_of_all(table: Tensor, pieces: Pieces, draws: torch.Generator) -> Tensor:
    return table.mean(0).expand(len(pieces), *table.shape[1:])


INITS: dict[str, tuple[Rows, Rows, Rows]] = {
    "mean_subword": (mean_subword, mean_subword, mean_subword),
    "normal": (normal_rows, normal_rows, _mean_of_all),
    "zero_logit": (mean_subword, zero_rows, zero_rows),
    "distill": (mean_subword, mean_subword, mean_subword),
    "omp": (mean_subword, mean_subword, mean_subword),
}
"""By `vocabulary.init`: rows of the embeddings, of the head, and the head's biases. Where embeddings and head are one
table, the head decides."""


def add_rows(model: PreTrainedModel, pieces: Mapping[int, Sequence[int]], known: int, init: str, seed: int) -> None:
    """Gives a model rows for new tokens, in place; all others stay as they are.

    Args:
        model: a language model.
        pieces: for the id of each new token the ids of its old pieces.
        known: rows that have a meaning: one more than the highest old id. Those behind may be filling.
        init: of INITS.
        seed: of random rows.
    """
    size = max(embedding_rows(model), max(pieces) + 1)
    with quiet():
        model.resize_token_embeddings(size, mean_resizing=False)
    of_embeddings, of_head, of_biases = INITS[init]
    embeddings, head = embedding_table(model), head_of(model)
    draws = torch.Generator().manual_seed(seed)
    ids, old = list(pieces), list(pieces.values())
    with torch.no_grad():
        is_tied = head is not None and head.weight.data_ptr() == embeddings.data_ptr()
        first = of_head if is_tied else of_embeddings
        embeddings[ids] = first(embeddings[:known], old, draws)
        if head is not None and not is_tied:
            head.weight[ids] = of_head(head.weight[:known], old, draws)
        if head is not None and head.bias is not None:
            head.bias[ids] = of_biases(head.bias[:known], old, draws)


def embedding_table(model: PreTrainedModel) -> Tensor:
    """The embeddings of tokens, [V, H]."""
    embeddings: Any = model.get_input_embeddings()
    table: Tensor = embeddings.weight
    return table


def embedding_rows(model: PreTrainedModel) -> int:
    """V of `embedding_table`."""
    return len(embedding_table(model))


def head_of(model: PreTrainedModel) -> Any:
    """The layer that gives logits; its weight may be that of the embeddings."""
    return model.get_output_embeddings()
