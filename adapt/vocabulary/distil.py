"""Token distillation (arXiv 2505.20133): rows that make the model read a new token as it read the old pieces.

The text around a new token has hidden states where the token stands, and others where its old pieces stand. The row is
learnt that brings them together. It is a row of the embeddings; where head and embeddings are one table, how well the
token is predicted is another matter, which a warm-up teaches.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adapt.model.outputs.states import last_hidden_state
from adapt.model.packing.packed import Packed
from adapt.vocabulary.only_rows import OnlyRows

TOKENS = 50
"""Tokens of a snippet."""
BATCH = 16
"""Snippets of a step."""
HELD_OUT = 20
"""One snippet in so many is not learnt from: on these the error is measured."""


def snippets_of(documents: Iterable[np.ndarray], new: Iterable[int], most: int) -> Iterator[np.ndarray]:
    """Pieces of documents around new tokens, int64 [at most TOKENS].

    Args:
        documents: tokens of each.
        new: ids of the new tokens.
        most: snippets for each of them; one that holds several counts for each.
    """
    asked, counts = np.array(sorted(new)), Counter[int]()
    for tokens in documents:
        until = 0
        for place in np.flatnonzero(np.isin(tokens, asked)).tolist():
            if place >= until and counts[int(tokens[place])] < most:
                start = max(0, place - TOKENS // 2)
                snippet = tokens[start : start + TOKENS].astype(np.int64)
                counts.update(snippet[np.isin(snippet, asked)].tolist())
                until = start + len(snippet)
                if len(snippet) > 1:
                    yield snippet


@dataclass(frozen=True)
class Error:
    """The stated error: mean squared difference of hidden states, on snippets that were not learnt from."""

    before: float
    after: float
    steps: int


def distil(
    teacher: Any,
    student: Any,
    pieces: Mapping[int, Sequence[int]],
    snippets: Sequence[np.ndarray],
    learning_rate: float,
    causal: bool,
    device: torch.device,
) -> Error:
    """Teaches the rows of new tokens, in place; one pass over the snippets.

    Args:
        teacher: the model before its vocabulary was extended, without its head (`adapt.model.base.load_base`).
        student: the same with the new rows.
        pieces: for the id of each new token the ids of its old pieces.
        snippets: with the new tokens, in random order.
        learning_rate: of AdamW.
        causal: states before a new token do not know of it, and are left out.
        device: to compute on.
    """
    for model in (teacher, student):
        model.to(device)
    held_out = snippets[::HELD_OUT]
    learnt = [snippet for number, snippet in enumerate(snippets) if number % HELD_OUT] or held_out
    rows = OnlyRows(student, list(pieces), learning_rate)

    def error(batch: Sequence[np.ndarray]) -> Tensor:
        return state_error(teacher, student, pieces, batch, causal, device)

    before = _mean(error, held_out)
    for start in range(0, len(learnt), BATCH):
        rows.step(error(learnt[start : start + BATCH]))
    return Error(before, _mean(error, held_out), -(-len(learnt) // BATCH))


def state_error(
    teacher: Any,
    student: Any,
    pieces: Mapping[int, Sequence[int]],
    batch: Sequence[np.ndarray],
    causal: bool,
    device: torch.device,
) -> Tensor:
    """Mean squared difference of the last hidden states at tokens that both have; arguments as of `distil`."""
    old = [list(chain.from_iterable(pieces.get(token, [token]) for token in snippet.tolist())) for snippet in batch]
    shared, places = [], []
    for snippet in batch:
        is_new = np.isin(snippet, list(pieces))
        knows = np.cumsum(is_new) > 0 if causal else np.ones(len(snippet), bool)
        lengths = np.array([len(pieces.get(token, [token])) for token in snippet.tolist()])
        shared.append(~is_new & knows)
        places.append(np.repeat(shared[-1], lengths))
    theirs = _joined([torch.tensor(ids) for ids in old], device)
    ours = _joined([torch.from_numpy(snippet) for snippet in batch], device)
    with torch.no_grad():
        target = last_hidden_state(teacher, theirs)[torch.from_numpy(np.concatenate(places)).to(device)]
    found = last_hidden_state(student, ours)[torch.from_numpy(np.concatenate(shared)).to(device)]
    return torch.nn.functional.mse_loss(found, target) if len(found) else found.sum()


def _joined(documents: Sequence[Tensor], device: torch.device) -> Packed:
    return Packed.joined(*map(Packed.single, documents)).to(device)


def _mean(error: Any, snippets: Sequence[np.ndarray]) -> float:
    with torch.no_grad():
        losses = [float(error(snippets[start : start + BATCH])) for start in range(0, len(snippets), BATCH)]
    return sum(losses) / max(len(losses), 1)
