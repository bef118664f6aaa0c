"""What a user may set of DAS: section `das`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adapt.config import NonNegativeFloat, OpenFraction, PositiveFloat, PositiveFraction, PositiveInt, ProperFraction


@dataclass(frozen=True)
class DasOptions:
    """DAS: soft masks by importance, and a contrast of old with new knowledge (arXiv 2302.03241)."""

    soft_mask: Literal["update", "gradient", "none"] = "update"
    """What the mask scales down for the parameters of important units: their `update`, or, as published, their
    `gradient`. Adam undoes most of a scaled gradient. `none` masks nothing."""
    general_importance: Literal["kl", "random", "none"] = "kl"
    """Which units count as important for general knowledge, before the first domain is learnt: `kl` those on which the
    divergence of two dropout passes depends most, `random` random ones, `none` no units. All later domains keep this
    importance."""
    importance: Literal["gate", "magnitude", "gradient", "fisher", "taylor"] = "gate"
    """What makes a unit important. `gate`, as published: the size of the loss's gradient at a gate on its output. The
    others are criteria of pruning, over the weights that the mask would hold: `magnitude` their norm, which needs no
    text; `gradient` the norm of the gradient there; `fisher` its square; `taylor` how much the loss would change at
    first order if they were 0."""
    importance_sequences: PositiveInt = 10_000
    """Rows of a domain, drawn at random, on which importance is measured."""
    importance_batch: PositiveInt = 64
    """Rows per gradient when importance is measured."""
    granularity: Literal["batch", "example"] = "batch"
    """Importance is the mean size of gradients, each of a whole `batch` or of a single row (`example`). Gradients of
    rows can cancel within a batch, and not one by one."""
    normalize: Literal["paper", "positive", "rank"] = "paper"
    """How the sizes of a layer's gradients become importance in [0, 1]; z is the distance from their mean in standard
    deviations. `paper`: |tanh(z)|, which also protects units far below the mean; `positive`: tanh(max(z, 0)); `rank`:
    the share of units with smaller gradients."""
    injected_dropout: ProperFraction = 0.1
    """For models without dropout (Llama, ModernBERT): dropout of the output of each attention and feed-forward layer,
    in the views that `kl` and the contrast compare. The objective's own pass has none. Other models ignore this value;
    a new value still runs their stages again."""
    plasticity_floor: ProperFraction = 0.0
    """Importances are scaled down until the mean of 1 - importance is at least this, in each layer and for each kind of
    unit; 0 leaves importances as they are."""
    contrast_weight: NonNegativeFloat = 1.0
    """Weight in the loss of the contrast between what the model knew and what it has learnt; 0 leaves the contrast
    out."""
    contrast_temperature: PositiveFloat = 0.05
    """Temperature of the contrast."""
    contrast_documents: PositiveInt = 248
    """Documents that the contrast tells apart from each other: the documents of a global batch are compared in groups
    of about equal size, none larger than this. A larger group is harder. A step of several micro-batches gives the same
    result, but computes the views twice."""
    contrast_text: Literal["all", "general"] = "all"
    """Which documents the contrast tells apart: `all` of a batch, as published, or those of `general` text alone, which
    `mixture.replay_paths` replays. With `general` all others get the objective's loss alone."""
    contrast_cost: Literal["exact", "lean", "economy"] = "lean"
    """`exact` trains through all three passes (2.9 times plain training; 3.8 if a step has several micro-batches);
    `lean` computes the same loss, but the pass of previous knowledge gets no gradient (2.2; 2.9 times); `economy` is
    `lean` on a part of the documents (1.3; 1.7 times)."""
    economy_fraction: OpenFraction = 0.2
    """`economy`: share of the documents of a global batch that the contrast takes."""
    share: PositiveFraction = 1.0
    """Share of the trained model in every weight that is handed on to the next domain; the rest is the model before, as
    with method `interpolate`."""
    embeddings: Literal["free", "gradient", "frequency"] = "free"
    """Whether rows of the embeddings are masked: `free` leaves them free, like the paper; `gradient` masks the row of a
    token by how much the loss of past domains depends on the token; `frequency` by how often the token comes in the
    text of past domains. General knowledge masks none."""
