"""The held-out loss of a model that has parts for each domain: with a text's own, and with those of the nearest one."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from adapt.config import EvaluationConfig
from adapt.evaluate.mlm_loss import Heldout, heldout_losses
from adapt.model.additions.domains import choose_domain, choose_set, domains_of
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
    losses, counts = np.zeros(len(nearest)), np.zeros(len(nearest), np.int64)
    for number in np.unique(nearest).tolist():
        places = np.flatnonzero(nearest == number)
        choose_set(model, number)
        losses[places], counts[places] = heldout_losses(
            model, objective, sample.only(places.tolist()), evaluation, device
        )
    routed = float(losses.sum() / counts.sum()) if counts.any() else None
    if domain not in known.names:
        return DomainLosses(losses, counts, routed)
    choose_domain(model, domain)
    right = float((nearest == known.names.index(domain)).mean())
    if right < 1:
        losses, _ = heldout_losses(model, objective, sample, evaluation, device)
    return DomainLosses(losses, counts, routed, right)
