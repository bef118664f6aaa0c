"""The finding on repeated text: how often a domain's text can be read before repeats stop helping."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adapt.runner.record import Record
from adapt.show.blocks import FindingBlock
from adapt.show.report.study import upstream
from adapt.statistics.loss_laws import fit_repeats, stop_of

REPLAY = "(replay)"
"""Name of replayed general text among the sources of a training."""


@dataclass(frozen=True)
class Repeated:
    """A training that reads the domain's text several times."""

    passes: float
    """Number of times that the domain's text is read."""
    share: float
    """Share of the training's rows that are general text."""
    loss: float
    """Held-out loss on the domain after the training [nats]."""


def passes_over(training: Record, tokens: Mapping[str, int]) -> float | None:
    """Returns how many times a training read the domain's text; None if the size of a text is not known.

    Args:
        training: record of the training.
        tokens: number of tokens that the training read of each source.
    """
    texts = {name: upstream(training, f"corpora.{name}") for name in tokens if name != REPLAY}
    sizes = [int(text.metrics.get("train_tokens") or 0) if text else 0 for text in texts.values()]
    return sum(tokens[name] for name in texts) / sum(sizes) if sizes and all(sizes) else None


def repeats_finding(label: str, trainings: Sequence[Repeated], margin: float) -> FindingBlock | None:
    """Fits the law of repeats to trainings that differ only in length and share of general text.

    Args:
        label: name of one of the trainings.
        trainings: the trainings.
        margin: largest difference of losses that does not matter [nats].

    Returns:
        The finding; None if there are too few trainings or numbers of passes for a fit.
    """
    passes, shares, losses = ([getattr(each, name) for each in trainings] for name in ("passes", "share", "loss"))
    law = fit_repeats(passes, shares, losses)
    if law is None:
        return None
    stop = stop_of(law, passes, shares, losses, margin)
    lowest = min(trainings, key=lambda each: each.loss)
    most = f"{law.most:.3g} passes, the most that were tried"
    head = f"Repeats of the text, {len(trainings)} trainings as {label}"
    fit = (
        f" Lowest loss measured: {lowest.loss:.3f} after {lowest.passes:.3g} passes with {lowest.share:.0%} of general"
        f" text. The law (2305.16264, with a penalty for repeats) fits within {law.error:.3f} nats; a repeated token"
        f" loses two thirds of its value after {law.worth:.3g} repeats."
    )
    high = "not reached" if stop.high is None else f"{stop.high:.3g}"
    ends = f"95% interval {stop.low:.3g} to {high}"
    if stop.passes is None:
        text = f"Repeats still lower the loss by more than {margin:g} nats: not reached within {most} ({ends})."
        return FindingBlock(head, text + fit, "open")
    return FindingBlock(
        head, f"Beyond {stop.passes:.3g} passes, repeats lower the loss by less than {margin:g} nats ({ends}).{fit}"
    )
