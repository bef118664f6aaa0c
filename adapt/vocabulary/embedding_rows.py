"""Adds rows for new tokens to a model's embeddings and head, initializes them, and trains these rows only.

`transplant_rows` initializes rows with the help of another model that knows the tokens, by orthogonal matching pursuit
(arXiv 2506.06607): in the donor's embeddings, a new token is approximated by a weighted sum of a few tokens that both
models have. The same weighted sum of this model's rows becomes the new row.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import orthogonal_mp
from torch import Tensor, nn
from transformers import PreTrainedModel

from adapt.model.load import load_base
from adapt.model.locate import Pretrained
from adapt.model.safeguards import quiet
from adapt.model.tokenizer import load_text_tokenizer
from adapt.support.errors import ModelError
from adapt.vocabulary.word_reader import WordReader

Pieces = Sequence[Sequence[int]]
Rows = Callable[[Tensor, Pieces, torch.Generator], Tensor]
"""Function that computes rows of new tokens from a table [V, ...], each new token's old pieces, and a generator."""


def mean_subword(table: Tensor, pieces: Pieces, draws: torch.Generator) -> Tensor:
    """Returns the mean of the rows of each token's old pieces. In the head, this gives the mean of their logits."""
    return torch.stack([table[list(old)].mean(0) for old in pieces])


def normal_rows(table: Tensor, pieces: Pieces, draws: torch.Generator) -> Tensor:
    """Draws rows from normal distributions with the mean and the standard deviation of each dimension of the table."""
    noise = torch.randn((len(pieces), *table.shape[1:]), generator=draws, dtype=table.dtype)
    return table.mean(0) + noise * table.std(0)


def zero_rows(table: Tensor, pieces: Pieces, draws: torch.Generator) -> Tensor:
    """Returns a row of zeros for each new token."""
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
"""For each `vocabulary.init`, the functions for rows of the embeddings, rows of the head, and biases of the head. If
embeddings and head are tied, the function of the head is used for both."""


def add_rows(model: PreTrainedModel, pieces: Mapping[int, Sequence[int]], known: int, init: str, seed: int) -> None:
    """Adds rows for new tokens to a model, in place. Rows of old tokens are unchanged.

    Args:
        model: a language model.
        pieces: for the id of each new token, the ids of its old pieces.
        known: the highest old id plus 1. Rows of the model from this index on may be padding.
        init: a name in INITS.
        seed: seed of random rows.
    """
    size = max(embedding_rows(model), max(pieces) + 1)
    with quiet():
        model.resize_token_embeddings(size, mean_resizing=False)
    of_embeddings, of_head, of_biases = INITS[init]
    embeddings, head = embedding_table(model), model.get_output_embeddings()
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
    """Returns the token embeddings, [V, H]."""
    embeddings: Any = model.get_input_embeddings()
    table: Tensor = embeddings.weight
    return table


def embedding_rows(model: PreTrainedModel) -> int:
    """Returns the number of rows of the token embeddings."""
    return len(embedding_table(model))


def token_tables(model: PreTrainedModel) -> list[nn.Parameter]:
    """Returns the parameters with one row per token: embeddings, head and head bias. Tied ones are returned once."""
    head = model.get_output_embeddings()
    tables = embedding_table(model), getattr(head, "weight", None), getattr(head, "bias", None)
    return list({id(table): table for table in tables if isinstance(table, nn.Parameter)}.values())


class OnlyRows:
    """An optimizer that changes the rows of some tokens, and nothing else in a model.

    Gradients of all other rows are set to 0, and there is no weight decay, so AdamW does not change them at all.

    Args:
        model: the model. All parameters except the tables with one row per token are frozen, in place.
        ids: ids of the tokens.
        learning_rate: learning rate of AdamW.
    """

    def __init__(self, model: Any, ids: Sequence[int], learning_rate: float) -> None:
        model.requires_grad_(False)
        tables = token_tables(model)
        for table in tables:
            table.requires_grad_(True)
            table.register_hook(lambda gradient: _only_rows(gradient, ids))
        self._optimizer = torch.optim.AdamW(tables, lr=learning_rate, weight_decay=0.0)

    def step(self, loss: Tensor) -> None:
        """Takes one optimizer step on a loss."""
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def _only_rows(gradient: Tensor, ids: Sequence[int]) -> Tensor:
    masked = torch.zeros_like(gradient)
    masked[list(ids)] = gradient[list(ids)]
    return masked


TERMS = 64
"""Largest number of tokens in the weighted sum for a new row (k in the paper)."""


def transplanted(
    targets: np.ndarray, anchors: np.ndarray, tables: Sequence[np.ndarray], terms: int = TERMS
) -> list[np.ndarray]:
    """Returns the new rows, [N, ...], for each table of our model.

    Args:
        targets: the donor's rows of the new tokens, [N, H'].
        anchors: the donor's rows of the shared tokens, [M, H'].
        tables: our rows of the shared tokens, each [M, ...]. All tables are summed with the same weights.
        terms: largest number of tokens in a weighted sum.
    """
    most = min(terms, *anchors.shape)
    weights = orthogonal_mp(anchors.T.astype(np.float64), targets.T.astype(np.float64), n_nonzero_coefs=most)
    by_token = np.reshape(weights, (len(anchors), len(targets))).T
    return [np.tensordot(by_token, table, axes=1).astype(table.dtype) for table in tables]


def transplant_rows(
    model: PreTrainedModel, reader: WordReader, new: Sequence[int], surfaces: Sequence[str], donor: Pretrained
) -> None:
    """Initializes the rows of new tokens in embeddings, head and head bias from a donor's embeddings, in place.

    If the donor splits a new token into several pieces, the mean of the pieces' rows is used.

    Args:
        model: the model, which already has rows for the new tokens.
        reader: word reader of the model's tokenizer before the extension.
        new: ids of the new tokens.
        surfaces: the new tokens as readable text.
        donor: the other model.

    Raises:
        ModelError: the donor cannot be loaded, or has no token in common.
    """
    other = WordReader(load_text_tokenizer(donor).backend_tokenizer)
    given = embedding_table(load_base(donor.model, donor.trust_remote_code)).detach().numpy()
    ours, theirs = reader.keys(), other.keys()
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        raise ModelError(f"{donor.model} has no token in common with the model", "choose another vocabulary.donor")
    pieces = [list(chain.from_iterable(map(other.pieces, other.words(surface)))) for surface in surfaces]
    targets = np.stack([given[each].mean(0) for each in pieces])
    changed = token_tables(model)
    places = [ours[token] for token in both]
    rows = transplanted(
        targets, given[[theirs[token] for token in both]], [each.detach()[places].numpy() for each in changed]
    )
    with torch.no_grad():
        for table, found in zip(changed, rows, strict=True):
            table[list(new)] = torch.from_numpy(found)
