"""Rows of new tokens in a model's embeddings and head: their first values, and training of these rows only.

`transplant_rows` takes rows from another model that knows the tokens, by orthogonal matching pursuit (arXiv
2506.06607): in the donor's embeddings a new token is near a sum of a few tokens that both models have. The same sum of
this model's rows becomes the new row.
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
    """The embeddings of tokens, [V, H]."""
    embeddings: Any = model.get_input_embeddings()
    table: Tensor = embeddings.weight
    return table


def embedding_rows(model: PreTrainedModel) -> int:
    """V of `embedding_table`."""
    return len(embedding_table(model))


def token_tables(model: PreTrainedModel) -> list[nn.Parameter]:
    """The tables with a row for each token: embeddings, head and its biases; tied ones once."""
    head = model.get_output_embeddings()
    tables = embedding_table(model), getattr(head, "weight", None), getattr(head, "bias", None)
    return list({id(table): table for table in tables if isinstance(table, nn.Parameter)}.values())


class OnlyRows:
    """An optimizer that moves some tokens' rows, and nothing else of a model.

    Gradients of all other rows are made 0, and there is no weight decay: AdamW then leaves them where they are, bit for
    bit.

    Args:
        model: its other parameters are frozen, in place.
        ids: of the tokens.
        learning_rate: of AdamW.
    """

    def __init__(self, model: Any, ids: Sequence[int], learning_rate: float) -> None:
        model.requires_grad_(False)
        tables = token_tables(model)
        for table in tables:
            table.requires_grad_(True)
            table.register_hook(lambda gradient: _kept(gradient, ids))
        self._optimizer = torch.optim.AdamW(tables, lr=learning_rate, weight_decay=0.0)

    def step(self, loss: Tensor) -> None:
        """One step down a loss."""
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def _kept(gradient: Tensor, ids: Sequence[int]) -> Tensor:
    found = torch.zeros_like(gradient)
    found[list(ids)] = gradient[list(ids)]
    return found


TERMS = 64
"""Tokens in a sum, at most: k of the paper."""


def transplanted(
    targets: np.ndarray, anchors: np.ndarray, tables: Sequence[np.ndarray], terms: int = TERMS
) -> list[np.ndarray]:
    """Rows [N, ...] for each of some tables of ours.

    Args:
        targets: what the donor has for the new tokens, [N, H'].
        anchors: its rows of shared tokens, [M, H'].
        tables: our rows of the same tokens, each [M, ...]; all are summed with the same weights.
        terms: of a sum.
    """
    most = min(terms, *anchors.shape)
    weights = orthogonal_mp(anchors.T.astype(np.float64), targets.T.astype(np.float64), n_nonzero_coefs=most)
    by_token = np.reshape(weights, (len(anchors), len(targets))).T
    return [np.tensordot(by_token, table, axes=1).astype(table.dtype) for table in tables]


def transplant_rows(
    model: PreTrainedModel, reader: WordReader, new: Sequence[int], surfaces: Sequence[str], donor: Pretrained
) -> None:
    """Gives new tokens rows by what a donor knows of them, in place: of the embeddings, of the head, and its biases.

    Of a token that is several pieces to the donor, the mean of these is taken.

    Args:
        model: has rows for them.
        reader: of its tokenizer before.
        new: ids of the new tokens.
        surfaces: as people write them.
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
