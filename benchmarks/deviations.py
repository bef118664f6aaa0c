"""Measures one seed of `benchmarks.das_deviations`: importances, and losses after training on a second domain."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

from adapt.config import Config, MethodConfig
from adapt.method.base import Method, Setting
from adapt.method.das.contrast import Disagreement
from adapt.method.das.criteria import MeasureSettings, gate_sizes
from adapt.method.das.importance import (
    Importance,
    accumulate,
    normalize,
    normalize_tokens,
    random_sizes,
    save_importance,
)
from adapt.method.das.method import DasOptions
from adapt.method.table import method_of
from adapt.model.layers import Gates, Kind, ones
from adapt.objective.objective import Batch, Objective
from benchmarks.ours import alone
from benchmarks.published import EqualNetworks, Unmasked, columns_of_heads, never_zeroed, other_texts
from benchmarks.two_domains import MEASURED, PRECISION, Domains

DTYPE = torch.bfloat16 if PRECISION == "bf16" else torch.float32
settings = partial(MeasureSettings, dtype=DTYPE)
Sizes = Mapping[Kind, Tensor]
Measure = Callable[[Any, Gates, list[tuple[int, Batch]], Objective, int], Sizes]
"""Function that measures importance. It takes a model, its gates, batches, the objective and a seed for dropout."""
PRODUCT = "product"
WAYS: dict[str, dict[str, Measure]] = {
    "general": {
        PRODUCT: lambda model, gates, batches, _, seed: (
            gate_sizes(model, gates, Disagreement(), batches, settings(dropout_seed=seed)).means
        ),
        "equal networks": lambda model, gates, batches, *_: (
            gate_sizes(model, gates, EqualNetworks(), batches, settings()).means
        ),
        "at random": lambda model, _gates, _batches, _objective, seed: random_sizes(model, seed),
    },
    "first domain": {
        PRODUCT: lambda model, gates, batches, objective, _: (
            gate_sizes(model, gates, objective, batches, settings()).means
        ),
        "by example": lambda model, gates, batches, objective, _: (
            gate_sizes(model, gates, objective, batches, settings(granularity="example")).means
        ),
        "unmasked": lambda model, gates, batches, objective, _: (
            gate_sizes(model, gates, Unmasked(objective), batches, settings()).means
        ),
        "never zeroed": lambda model, gates, batches, objective, _: never_zeroed(
            model, gates, objective, batches, DTYPE
        ),
        "unmasked, never zeroed": lambda model, gates, batches, objective, _: never_zeroed(
            model, gates, Unmasked(objective), batches
        ),
    },
}
"""Ways of measuring importance, keyed by the kind of knowledge (general or of the first domain) and by name."""
FEW_UNITS = 10
"""The units of a layer are only ranked if there are at least this many. BERT-tiny's two heads per layer are too few."""
SWITCHED_OFF = 0.1


@dataclass(frozen=True)
class Variant:
    """A way of training on the second domain."""

    general: str | None = PRODUCT
    first: str = PRODUCT
    """Key in WAYS that selects how importance for the first domain is measured.

    The field `general` selects how importance for general knowledge is measured. If it is None, importance for general
    knowledge is not measured.
    """
    swapped: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Context manager that replaces a part of our DAS with the published code."""
    das: DasOptions | None = field(default_factory=DasOptions)
    """Options of DAS, or None for plain training."""
    rate: float = 1.0
    """Factor on the learning rate of the second domain."""


def _both() -> ExitStack:
    stack = ExitStack()
    stack.enter_context(columns_of_heads())
    stack.enter_context(other_texts())
    return stack


GRADIENT, POSITIVE = DasOptions(soft_mask="gradient"), DasOptions(normalize="positive")
NO_CONTRAST = DasOptions(contrast_weight=0.0)
FREQUENCY, BOTH = DasOptions(embeddings="frequency"), DasOptions(embeddings="frequency", contrast_weight=0.0)
TRAININGS = {
    "DAS": Variant(),
    "plain training": Variant(das=None),
    "published: mask of gradients": Variant(das=GRADIENT),
    "published: KL proxy": Variant(general="equal networks"),
    "published: inputs of importance": Variant(first="unmasked"),
    "published: gradients of importance": Variant(first="never zeroed"),
    "published: contrast pairs": Variant(swapped=other_texts),
    "published: all of these": Variant("equal networks", "unmasked, never zeroed", _both, GRADIENT),
    "without contrast": Variant(das=NO_CONTRAST),
    "without mask": Variant(das=DasOptions(soft_mask="none")),
    "mask of gradients alone": Variant(das=DasOptions(soft_mask="gradient", contrast_weight=0.0)),
    "without general importance": Variant(general=None),
    "general importance at random": Variant(general="at random"),
    "importance by example": Variant(first="by example"),
    "positive": Variant(das=POSITIVE),
    "positive, published: columns of q, k, v": Variant(swapped=columns_of_heads, das=POSITIVE),
    "rank": Variant(das=DasOptions(normalize="rank")),
    "exact": Variant(das=DasOptions(contrast_cost="exact")),
    "economy": Variant(das=DasOptions(contrast_cost="economy")),
    "embeddings by gradient": Variant(das=DasOptions(embeddings="gradient")),
    "embeddings by frequency": Variant(das=FREQUENCY),
    "by frequency, without contrast": Variant(das=BOTH),
    "plain training at half the rate": Variant(das=None, rate=0.5),
    "DAS at half the rate": Variant(rate=0.5),
    "without contrast, at half the rate": Variant(das=NO_CONTRAST, rate=0.5),
    "by frequency, without contrast, at half the rate": Variant(das=BOTH, rate=0.5),
}
"""Ways of training, keyed by their difference from the defaults. The normalization `positive` gives the two heads of
BERT-tiny different importances."""


@dataclass(frozen=True)
class Seed:
    """Measurements for one seed."""

    domains: Domains
    seed: int
    known: dict[tuple[str, str], list[Sizes]] = field(default_factory=dict)
    """Sizes of gradients that have already been measured, keyed by kind of knowledge and way of measuring."""

    @cached_property
    def learnt(self) -> dict[str, Tensor]:
        """Returns the weights of the model after training on the first domain."""
        return self.domains.train(self.domains.model(), "first", Method(), self.seed)

    def model(self, about: str) -> Any:
        """Returns the initial model if `about` is "general", else the model that was trained on the first domain."""
        return self.domains.model(None if about == "general" else self.learnt)

    def batches(self, half: int) -> list[tuple[int, Batch]]:
        """Returns one half (0 or 1) of the rows drawn from the first domain, as batches."""
        text = self.domains.texts["first"]
        return text.batches(text.drawn(MEASURED, self.seed + 1_000)[half::2])

    def sizes(self, about: str, how: str) -> list[Sizes]:
        """Returns the sizes of gradients, measured on each half of the rows."""
        if (about, how) not in self.known:
            models = [self.model(about) for _ in range(2)]
            self.known[about, how] = [
                WAYS[about][how](model, Gates(model), self.batches(half), self.domains.objective, 2 * self.seed + half)
                for half, model in enumerate(models)
            ]
        return self.known[about, how]

    def importance(self, about: str) -> dict[str, dict[str, float]]:
        """Returns stability, agreement and effect of switching units off, keyed by the way of measuring importance."""
        text = "general" if about == "general" else "first"
        whole = self.domains.loss(self.model(about), text)
        ours = self.sizes(about, PRODUCT)
        found = {}
        for how in WAYS[about]:
            halves = self.sizes(about, how)
            found[how] = {
                "stability": agreement(*halves),
                "agreement": mean(agreement(ours[half], halves[1 - half]) for half in (0, 1)),
                "switched off": self.without(about, text, halves[0]) - whole,
            }
        return found

    def without(self, about: str, text: str, sizes: Sizes) -> float:
        """Returns the held-out loss of the model when its most important units are switched off."""
        model = self.model(about)
        gates, values = Gates(model), ones(model)
        for kind, each in values.items():
            most = sizes[kind].topk(int(SWITCHED_OFF * each.shape[1]), dim=1).indices
            each.scatter_(1, most, 0.0)
        with gates.set(values):
            return self.domains.loss(model, text)

    def trained(self, variant: Variant) -> dict[str, Tensor]:
        """Returns the weights of a model after training on the second domain."""
        model = self.domains.model(self.learnt)
        with tempfile.TemporaryDirectory() as folder, variant.swapped():
            method = Method() if variant.das is None else self.das(model, variant, variant.das, Path(folder))
            return self.domains.train(model, "second", method, self.seed, variant.rate)

    def das(self, model: Any, variant: Variant, config: DasOptions, folder: Path) -> Method:
        """Prepares DAS with the importances for the first domain and, depending on the variant, general knowledge."""
        units = normalize(_whole(self.sizes("first domain", variant.first)), config.normalize)
        if variant.general:
            units = accumulate(normalize(_whole(self.sizes("general", variant.general)), config.normalize), units)
        importance = Importance(units, self.tokens(config), torch.zeros(0, dtype=torch.int64))
        save_importance(importance, model, folder)
        method = method_of(Config(method=MethodConfig("das"), method_options=config))
        method.prepare_model(model, Setting(past={"importance": folder}))
        return method

    def tokens(self, das: DasOptions) -> Tensor | None:
        """Returns the importance of each row of the token embeddings."""
        if das.embeddings == "free":
            return None
        model, objective = self.domains.model(self.learnt), self.domains.objective
        batches, how = self.batches(0) + self.batches(1), settings(embeddings=das.embeddings)
        found = gate_sizes(model, Gates(model), objective, batches, how).tokens
        return None if found is None else normalize_tokens(found)

    def losses(self, state: Any) -> dict[str, float]:
        """Returns the held-out losses of a model on all texts."""
        model = self.domains.model(state)
        return {text: self.domains.loss(model, text) for text in self.domains.texts}


def _whole(halves: list[Sizes]) -> dict[Kind, Tensor]:
    return {kind: halves[0][kind] + halves[1][kind] for kind in halves[0]}


def agreement(one: Sizes, other: Sizes) -> float:
    """Returns Spearman's correlation between two measurements, averaged over layers and kinds of unit."""
    return mean(
        float(spearmanr(a, b).statistic)
        for kind in one
        if one[kind].shape[1] >= FEW_UNITS
        for a, b in zip(one[kind], other[kind], strict=True)
    )


def of_seed(data: Path, base: Path, steps: int, names: list[str], seed: int) -> dict[str, Any]:
    """Measures one seed, in a separate process on one core.

    Returns:
        If `names` is `["importance"]`, the result of `importance` for each kind of knowledge. Otherwise the held-out
        losses on all texts: before the second domain (key `before`), and after training in each way (keyed by the name
        of the way).
    """
    torch.set_num_threads(1)
    alone()
    one = Seed(Domains.read(data, base, steps, seed), seed)
    if names == ["importance"]:
        return {about: one.importance(about) for about in WAYS}
    after = {name: one.losses(one.trained(TRAININGS[name])) for name in names}
    return {"before": one.losses(one.learnt), **after}
