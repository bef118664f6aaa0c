"""How near some texts are to those that they should resemble. Loads nothing, so that records can be read at once."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Nearness:
    """Figures of some texts, beside a target. None stands for what was not measured."""

    documents: int
    tokens: int
    kl: float | None
    """KL(target || texts) of hashed n-grams [nats a gram]."""
    auc: float | None
    """How well a classifier tells them from the target, on texts that it was not trained on."""
    shared_words: float | None
    """Share of the most frequent words of as much text of each."""
    distinct: float
    """Share of the word pairs that are different, in as much text of each."""
    distance: float | None
    """How diverse they are: the mean of 1 - cosine over all pairs of 1,000 texts at random; see `layout`."""
    loss: float | None
    """Held-out loss of the model that the job begins with [nats a predicted token]."""
