"""Rows of new tokens from another model that knows them, by orthogonal matching pursuit (arXiv 2506.06607).

In the donor's embeddings a new token is near a sum of a few tokens that both models have; the same sum of our rows is
its row.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from transformers import PreTrainedModel

from adapt.errors import ModelError
from adapt.model.base import load_base
from adapt.model.literal import load_text_tokenizer
from adapt.model.locate import Pretrained
from adapt.vocabulary.rows import embedding_table, head_of
from adapt.vocabulary.words import WordReader

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
    from sklearn.linear_model import orthogonal_mp

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
    head = head_of(model)
    tables = {
        id(each): each for each in (embedding_table(model), getattr(head, "weight", None), getattr(head, "bias", None))
    }
    changed = [each for each in tables.values() if each is not None]
    places = [ours[token] for token in both]
    rows = transplanted(
        targets, given[[theirs[token] for token in both]], [each.detach()[places].numpy() for each in changed]
    )
    with torch.no_grad():
        for table, found in zip(changed, rows, strict=True):
            table[list(new)] = torch.from_numpy(found)
