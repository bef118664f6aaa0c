"""The held-out loss of a model that has parts for each domain: with a text's own, and without being told which."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from adapt.config import EvaluationConfig
from adapt.evaluate.mixture import mixture_losses
from adapt.evaluate.mlm_loss import Heldout, heldout_losses
from adapt.model.additions.domains import choose_set, domains_of
from adapt.model.additions.experts import has_experts
from adapt.model.additions.route import domain_vectors, nearest_domains
from adapt.objective.base import Objective


@dataclass(frozen=True)
class DomainLosses:
    """Losses on a held-out sample of documents."""

    losses: np.ndarray
    """Summed over the predictions of each document [nats]."""
    counts: np.ndarray
    """Predictions of each document."""
    routed: float | None = None
    """Loss with the parts of the nearest domain [nats a predicted token]; None where the model has no such parts."""
    routed_right: float | None = None
    """The share of documents that are nearest to their own domain; None where the model has no parts for it."""
    mixed: float | None = None
    """Loss with the mixture of all experts [nats a predicted token]; None where the model has no experts."""


def losses_by_domain(
    model: Any,
    objective: Objective,
    sample: Heldout,
    evaluation: EvaluationConfig,
    device: torch.device,
    domain: str | None = None,
) -> DomainLosses:
    """The losses of documents, as `heldout_losses` has them.

    Args:
        model: afterwards the parts in use are those of the domain, if it has some.
        objective: of the loss.
        sample: the documents.
        evaluation: settings.
        device: where to measure.
        domain: that the documents belong to; None if it is not known.
    """
    known = domains_of(model)
    if known is None or not sample.tokens:
        return DomainLosses(*heldout_losses(model, objective, sample, evaluation, device))
    model.to(device).eval()
    nearest = nearest_domains(model, domain_vectors(model, sample.tokens))
    own, is_mixed = known.names.index(domain) if domain in known.names else None, has_experts(model)
    documents = np.arange(len(nearest))
    losses, counts = np.zeros((len(known.names), len(nearest))), np.zeros(len(nearest), np.int64)
    for number in range(len(known.names)):
        places = documents if is_mixed or number == own else np.flatnonzero(nearest == number)
        if len(places):
            choose_set(model, number)
            some = sample.only(places.tolist())
            losses[number, places], counts[places] = heldout_losses(model, objective, some, evaluation, device)
    taken = losses[nearest, documents]
    routed = _mean(taken, counts)
    mixed = _mean(mixture_losses(losses), counts) if is_mixed else None
    if own is None:
        return DomainLosses(taken, counts, routed, mixed=mixed)
    choose_set(model, own)
    return DomainLosses(losses[own], counts, routed, float((nearest == own).mean()), mixed)


def _mean(losses: np.ndarray, counts: np.ndarray) -> float | None:
    """Nats a predicted token; None where nothing is predicted."""
    return float(losses.sum() / counts.sum()) if counts.any() else None
