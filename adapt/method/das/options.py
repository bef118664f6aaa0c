"""What a user may set of DAS: section `das`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adapt.config import NonNegativeFloat, OpenFraction, PositiveFloat, PositiveInt, ProperFraction


@dataclass(frozen=True)
class DasOptions:
    """Soft masks by importance, and contrast (arXiv 2302.03241)."""

    soft_mask: Literal["update", "gradient", "none"] = "update"
    """What of an important unit is scaled down: the `update` of its parameters, or, as published, their `gradient`,
    which Adam makes up for."""
    general_importance: Literal["kl", "random", "none"] = "kl"
    """What protects general knowledge while the first domain is learnt: units that dropout makes the model depend on
    (`kl`), random ones, or nothing. Whatever it is, it is kept for all later domains."""
    importance_sequences: PositiveInt = 10_000
    """Rows of a domain on which importance is measured, at random."""
    importance_batch: PositiveInt = 64
    """Rows per gradient when importance is measured."""
    granularity: Literal["batch", "example"] = "batch"
    """Importance is the mean size of the gradients of batches, or of single rows, which cannot cancel."""
    normalize: Literal["paper", "positive", "rank"] = "paper"
    """How sizes of gradients, per layer, become importance in [0, 1]: `paper` |tanh(z)|, z in standard deviations from
    the mean, which protects units far below it too; `positive` tanh(max(z, 0)); `rank` the share of units below."""
    injected_dropout: ProperFraction = 0.1
    """Models without dropout (Llama, ModernBERT): dropout of each attention's and feed-forward layer's output in the
    views that `kl` and the contrast compare; the pass of the objective itself has none. Other models ignore it, but a
    change of it redoes what it might have changed."""
    plasticity_floor: ProperFraction = 0.0
    """Importances of a layer are scaled down so that 1 - importance is at least this on average, per kind of unit; 0
    leaves them."""
    contrast_weight: NonNegativeFloat = 1.0
    """Weight of the contrast between what the model knows and what it has learnt; 0 leaves it out."""
    contrast_temperature: PositiveFloat = 0.05
    """Temperature of the contrast."""
    contrast_documents: PositiveInt = 248
    """Documents that are told apart from each other: those of a global batch are compared in groups of about equal
    size, none larger than this. The more, the harder. A step of several micro-batches computes the same, but makes the
    views twice."""
    contrast_cost: Literal["exact", "lean", "economy"] = "lean"
    """`exact` trains through all three passes (2.9 times plain training; 3.8 where a step has several micro-batches);
    `lean` has the same value, but the pass of previous knowledge gets no gradient (2.2; 2.9 times); `economy` does so
    on a part of the documents (1.3; 1.7 times)."""
    economy_fraction: OpenFraction = 0.25
    """`economy`: share of the documents of a global batch."""
    embeddings: Literal["free", "gradient", "frequency"] = "free"
    """The rows of the embeddings, which the paper leaves free: masked too, by how past domains' loss depends on a token
    (`gradient`), or how often it comes in their text (`frequency`). General knowledge masks none."""
