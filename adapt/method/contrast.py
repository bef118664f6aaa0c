"""The contrast of DAS (arXiv 2302.03241, section 4.2): documents are told apart from what the model knew before.

All views of a micro-batch are documents of one packed sequence, so they take one pass. The objective's own pass is the
first view; its documents come a second time with other dropout; and what the model knew is the same network with the
outputs of its units multiplied by their importance. The head runs at the predictions of the first view alone.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from adapt.config import DasConfig
from adapt.method.gather import gathered
from adapt.method.views import Injected
from adapt.model.head import loss_and_states, states_of
from adapt.model.packed import Packed
from adapt.model.states import document_means
from adapt.model.units import Gates, Kind, Values
from adapt.objective.base import Corrupted


class Contrast:
    """Makes the views of a micro-batch and compares them.

    Args:
        config: says what is run, and trained through.
        gates: of the model; None where nothing is known yet, and documents are told apart from each other alone.
        importance: I of every unit, where there are gates.
        injected: what makes views differ, in models without dropout. It spares the objective's own pass.
    """

    def __init__(
        self,
        config: DasConfig,
        gates: Gates | None = None,
        importance: Values | None = None,
        injected: Injected | None = None,
    ) -> None:
        self._config = config
        self._gates = gates
        self._importance: dict[Kind, Tensor] = dict(importance or {})
        self._injected = injected
        self._backward = ExitStack()  # what lasts until the next micro-batch: checkpointed layers run again

    def losses(self, model: nn.Module, corrupted: Corrupted) -> tuple[Tensor, Tensor]:
        """Of one micro-batch. All ranks call it.

        What a row holds of a document counts as one, even if it is the last token or two of what the row before could
        not hold. `economy` takes the first documents, which are any, since rows come shuffled.

        Args:
            model: with its head, or a wrapper of it.
            corrupted: the rows.

        Returns:
            The summed cross entropy of the predictions [nats], and the contrast of each of this rank's documents that
            are compared [nats], [D].
        """
        self._backward.close()
        whole = corrupted.packed()
        total, count = len(whole.documents), self._count(len(whole.documents))
        part = whole.first(count)
        is_exact = self._gates is not None and self._config.contrast_cost == "exact"
        previous = self._known(model, part) if self._gates and not is_exact else None

        together = Packed.joined(whole, part, part) if is_exact else Packed.joined(whole, part)
        index = torch.arange(together.tokens, device=together.input_ids.device)
        if is_exact:
            self._gate(index >= whole.tokens + part.tokens)
        if self._injected:
            self._backward.enter_context(self._injected.on(index >= whole.tokens))
        positions = torch.zeros_like(index, dtype=torch.bool)
        positions[: whole.tokens] = corrupted.positions[corrupted.real]
        loss, states = loss_and_states(model, together, positions, corrupted.targets)
        views = document_means(states.float(), together)
        if is_exact:
            previous = views[total + count :]
        return loss, info_nce(views[:count], views[total : total + count], previous, self._config.contrast_temperature)

    def _count(self, documents: int) -> int:
        """How many of a pass's documents are compared."""
        if self._config.contrast_cost != "economy":
            return documents
        return min(documents, max(2, ceil(self._config.economy_fraction * documents)))

    def _known(self, model: nn.Module, packed: Packed) -> Tensor:
        """What the model knew of each document, without gradient, [documents, H]."""
        assert self._gates
        importance = self._importance_on(packed.input_ids.device)
        injected = self._injected.on() if self._injected else nullcontext()
        with torch.no_grad(), self._gates.set(importance), injected:
            return document_means(states_of(model, packed).float(), packed)

    def _gate(self, tokens: Tensor) -> None:
        """Gates these tokens by importance, bool [N], until the next micro-batch."""
        assert self._gates
        importance = self._importance_on(tokens.device)
        values = {kind: torch.stack((torch.ones_like(each), each), 1) for kind, each in importance.items()}
        self._backward.enter_context(self._gates.set(values, tokens.long()))

    def _importance_on(self, device: torch.device) -> dict[Kind, Tensor]:
        self._importance = {kind: each.to(device) for kind, each in self._importance.items()}
        return self._importance


def info_nce(first: Tensor, second: Tensor, previous: Tensor | None, temperature: float) -> Tensor:
    """How hard it is to tell a document's second view from those of others, and from what was known of all.

    The contrast of arXiv 2302.03241, section 4.2: with s the cosine over t, and j over the documents of all ranks,
    loss_n = -log exp(s(first_n, second_n)) / sum_j [exp(s(first_n, second_j)) + exp(s(first_n, previous_j))].

    Args:
        first: [D, H], this rank's documents; D may be 0.
        second: [D, H].
        previous: [D, H], or None for no such negatives, on all ranks alike.
        temperature: t.

    Returns:
        Losses [nats], [D]. The gradient of their sum over all ranks is right if all ranks go back through it.
    """
    views = (second,) if previous is None else (second, previous)
    rows, begin = gathered(torch.cat(views, 1))  # one collective for both
    candidates = torch.cat(rows.chunk(len(views), dim=1))
    scores = normalize(first) @ normalize(candidates).T / temperature
    own = torch.arange(begin, begin + len(first), device=first.device)
    return cross_entropy(scores, own, reduction="none")
