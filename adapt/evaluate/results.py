"""What was measured of models and texts, as records keep it. Nothing here takes long to load."""

from dataclasses import dataclass, field
from typing import Literal

Unit = Literal["token", "byte"]
Rows = list[list[float]]
Ends = list[list[float | None]]


@dataclass(frozen=True)
class TextLoss:
    """A model on the held-out sample of a corpus."""

    loss: float | None
    """Nats a predicted token; None where there is no held-out text."""
    documents: int
    predictions: int
    overlap: int | None
    """Held-out documents that the model was trained on; None where that is not known."""
    routed: float | None = None
    """Where the model has parts for each domain: its loss with those of the domain that each document is nearest to
    [nats a predicted token]. `loss` is then that with the parts of the corpus's own domain, or the same as `routed`
    where the model has none for it."""
    routed_right: float | None = None
    """The share of documents that are nearest to their own domain; None where the model has no parts for it."""
    mixed: float | None = None
    """Where the model has experts: its loss with their mixture (`adapt.evaluate.mixture`) [nats a predicted token]."""
    loss_per_byte: float | None = None
    """Nats a byte of text (`adapt.evaluate.per_byte`), for models with other tokens; None where no length is known."""


@dataclass(frozen=True)
class TaskNeighbours:
    """How often the nearest neighbours of a task's test texts in train have their label."""

    accuracy: float | None
    """The share of test texts with the label of their neighbours; None if no text is left to classify."""
    examples: int
    """Test texts that it is the share of."""
    left_out: int
    """Test texts that stand in train too, whose nearest neighbour is themselves."""


@dataclass(frozen=True)
class ModelsCompared:
    """Several models on several texts.

    Grids have a row a model and a column a text. The ends of 95% intervals are None where there are few documents.
    """

    models: list[str]
    domains: list[str]
    documents: dict[str, int]
    """Measured, by domain."""
    loss: Rows
    """Nats a predicted token, or a byte of text."""
    loss_low: Ends
    loss_high: Ends
    change: Rows
    """Against the first model, paired by document: on text that a model was not adapted to, what it has forgotten."""
    change_low: Ends
    change_high: Ends
    overlap: dict[str, dict[str, int | None]] = field(default_factory=dict)
    """Measured documents that were trained on, by model and domain; None: not known."""
    knn: dict[str, dict[str, float | None]] | None = None
    """Accuracy of nearest neighbours by task and model; None where there are no tasks."""
    knn_left_out: dict[str, int] | None = None
    """How many test texts of each task were left out."""
    pseudo_perplexity: dict[str, dict[str, float | None]] | None = None
    """Pseudo-perplexity by domain and model; empty if nobody asked for it."""
    unit: Unit = "token"
    """What the losses are of: a byte of text where the models have different tokens."""


@dataclass(frozen=True)
class Similar:
    """Square matrices over the domains, in order."""

    domains: list[str]
    documents: list[int]
    """Size of each domain's sample."""
    overlap: Rows
    """Share of the top 10,000 unigrams (no stop words) of one domain that are among the other's (the paper's text)."""
    jaccard: Rows
    """|A and B| / |A or B| of all words in at least 3 documents (the paper's code)."""
    cross_loss: Rows
    """Row model, column text: how much worse a unigram language model of one domain predicts the words of another than
    the other's own does [nats a word]; 0 on the diagonal. The Kullback-Leibler divergence of their word frequencies."""
    model_loss: Rows | None = None
    """Row model, column text: mean held-out loss [nats a predicted token]; None where there are no models."""
