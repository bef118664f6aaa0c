"""Training method DAS (arXiv 2302.03241).

Units (attention heads and neurons) that matter to past domains move less, and a contrastive loss separates new
knowledge from earlier knowledge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import (
    Config,
    MixtureConfig,
    NonNegativeFloat,
    OpenFraction,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    ProperFraction,
)
from adapt.method import measurement, weight_means
from adapt.method.base import Added, AddedMemory, Domain, Method, Notes, NoteTable, Setting
from adapt.method.das.stage import MeasureImportance, plasticity_under, saturated, unprotected
from adapt.model.architecture import check_units
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from adapt.method.das.contrast import Contrast
    from adapt.model.masked_updates import Mask
    from adapt.model.size import ModelSize
    from adapt.objective.objective import Corrupted, Objective
    from adapt.runner import Finished, Stage

IMPORTANCE = "importance"
"""Name under which the method adds its stage to a sequence of domains."""
CONTRAST = (
    "contrast_weight",
    "contrast_temperature",
    "contrast_documents",
    "contrast_text",
    "contrast_cost",
    "economy_fraction",
    "injected_dropout",
)
KINDS = {"head": "attention heads", "inner": "feed-forward, inner", "output": "feed-forward, output"}
PLASTICITY = "remaining plasticity (1 - importance): mean over layers (lowest to highest layer)"


@dataclass(frozen=True)
class DasOptions:
    """Options of DAS: soft masks by importance, and a contrastive loss for new knowledge (arXiv 2302.03241)."""

    soft_mask: Literal["update", "gradient", "none"] = "update"
    """What the mask scales down for parameters of important units: their `update`, or their `gradient`, as published.
    But Adam undoes most of the scaling of gradients. `none` masks nothing."""
    general_importance: Literal["kl", "random", "none"] = "kl"
    """Which units (attention heads and neurons) count as important for general knowledge before the first domain. `kl`:
    the units on which the divergence of two dropout passes depends most. `random`: random units. `none`: no unit. This
    importance is kept for all later domains."""
    importance: Literal["gate", "magnitude", "gradient", "fisher", "taylor"] = "gate"
    """Criterion of a unit's importance. `gate`, as published: the size of the loss's gradient at a gate on the unit's
    output. The other values are pruning criteria on the weights that the mask protects. `magnitude`: the norm of the
    weights, which needs no text. `gradient`: the norm of their gradient. `fisher`: the squared norm of their gradient.
    `taylor`: the first-order change of the loss if the weights were 0."""
    importance_sequences: PositiveInt = 10_000
    """Number of randomly drawn rows of a domain on which importance is measured."""
    importance_batch: PositiveInt = 64
    """Number of rows per gradient when importance is measured."""
    granularity: Literal["batch", "example"] = "batch"
    """Whether one gradient is computed per batch (`batch`) or per row (`example`). Importance is the mean size of these
    gradients. Within a batch, gradients of different rows can cancel."""
    normalize: Literal["paper", "positive", "rank"] = "paper"
    """How the sizes of a layer's gradients become importance in [0, 1]. z is a size's distance from the layer's mean in
    standard deviations. `paper`: |tanh(z)|, which also protects units far below the mean; `positive`: tanh(max(z, 0));
    `rank`: the share of units with smaller gradients."""
    injected_dropout: ProperFraction = 0.1
    """Dropout for models that have none (Llama, ModernBERT), on the output of each attention and feed-forward layer. It
    applies only to the views that `kl` and the contrast compare. Other models ignore this value, but changing it
    still reruns their stages."""
    plasticity_floor: ProperFraction = 0.0
    """Minimum of the mean of 1 - importance over the units of one kind in a layer. Importances are scaled down until
    the mean is at least this. 0 changes no importance."""
    contrast_weight: NonNegativeFloat = 1.0
    """Weight of the contrastive loss between earlier and new knowledge in the total loss; 0 disables the contrast."""
    contrast_temperature: PositiveFloat = 0.05
    """Temperature of the contrast: similarities are divided by it. Lower values give similar documents more weight."""
    contrast_documents: PositiveInt = 248
    """Maximum number of documents that are compared with each other: a global batch is split into groups of about equal
    size. A larger group is a harder task. A step of several micro-batches gives the same result, but computes the
    views twice."""
    contrast_text: Literal["all", "general"] = "all"
    """Which documents the contrast compares: `all` documents of a batch, as published, or only documents of the
    `general` text that `mixture.replay_paths` replays. With `general`, all other documents get only the objective's
    loss."""
    contrast_cost: Literal["exact", "lean", "economy"] = "lean"
    """Trade-off between speed and exactness. `exact` backpropagates through all three passes. `lean` computes the same
    loss, but does not backpropagate through the pass of earlier knowledge. `economy` is `lean` on a part of the
    documents. Costs relative to plain training: 2.9, 2.2 and 1.3 times with one micro-batch per step, and 3.8, 2.9 and
    1.7 times with several."""
    economy_fraction: OpenFraction = 0.2
    """Share of a global batch's documents that the contrast compares (contrast_cost: economy)."""
    share: PositiveFraction = 1.0
    """Weight of the trained model when it is averaged with the model before this domain, as with method
    `interpolate`. 1 exports the trained model unchanged."""
    embeddings: Literal["free", "gradient", "frequency"] = "free"
    """Whether and how rows of the embeddings are masked. `free`: no mask, as in the paper. `gradient`: a token's row is
    masked by how much the loss of past domains depends on the token. `frequency`: a token's row is masked by how often
    the token occurs in the text of past domains. Importance for general knowledge masks no embeddings."""


class Das(Method):
    """Trains with soft masks and the contrastive loss. Both use the importance that an earlier stage measured."""

    Options = DasOptions
    kind: ClassVar[str] = "das"

    def __init__(self, options: DasOptions) -> None:
        super().__init__(options)
        self.options: DasOptions = options
        self._masks: dict[str, Mask] = {}  # keyed by parameter name
        self._contrast: Contrast | None = None
        self._setting = Setting()
        self.exports_trained = options.share == 1
        self._plasticity = 1.0

    def settings(self) -> dict[str, Any]:
        das = self.options
        counts = {"economy_fraction": das.contrast_cost == "economy", "contrast_text": das.contrast_text != "all"}
        contrast = [name for name in CONTRAST if counts.get(name, True)]
        masks = ["plasticity_floor"] if das.soft_mask != "none" else []
        shares = ["share"] if das.share < 1 else []
        used = ["soft_mask", *masks, *shares, *(contrast if das.contrast_weight else [])]
        return {name: getattr(das, name) for name in used}

    def check(self, config: Config, model: Path) -> None:
        if not self._measures:
            return
        check_units(model)
        das = self.options
        if das.general_importance != "none":
            measurement.check_prepared(config, "importance", "set das.general_importance to none")
        needed = {"magnitude": ("free",), "gate": ("free", "gradient", "frequency")}
        if das.embeddings not in needed.get(das.importance, ("free", "frequency")):
            raise ConfigError(
                f"das.embeddings is {das.embeddings}, which das.importance {das.importance} does not measure",
                f"set das.embeddings to {needed.get(das.importance, ('frequency',))[0]}, or das.importance to gate",
            )
        if das.contrast_weight and das.contrast_text == "general":
            _check_replayed(config.mixture)

    def before(self, first: Domain) -> Mapping[str, Stage[Any]]:
        """The stage runs on the text of the first domain."""
        if not self._measures or self.options.general_importance == "none":
            return {}
        return {IMPORTANCE: self._measured("general", first, None)}

    def after_domain(self, learnt: Domain) -> Mapping[str, Stage[Any]]:
        if not self._measures:
            return {}
        return {IMPORTANCE: self._measured("domain", learnt, learnt.past.get(IMPORTANCE))}

    def _measured(self, about: Any, domain: Domain, previous: Stage[Any] | None) -> Stage[Any]:
        config = domain.config
        return MeasureImportance(config.name, config, self.options, domain.start, domain.texts, previous, about)

    @property
    def _measures(self) -> bool:
        return self.options.soft_mask != "none" or self.options.contrast_weight > 0

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """Returns an upper bound with `contrast_text: general`, because the share of general text is not known here."""
        das = self.options
        if not das.contrast_weight:
            return Added()
        share = das.economy_fraction if das.contrast_cost == "economy" else 1.0
        is_exact = is_known and das.contrast_cost == "exact"
        trained, seen = (2.0, 0.0) if is_exact else (share, share * is_known)
        return Added(trained, seen + (1 + trained) * (passes > 1))

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Masks need all starting weights on every rank."""
        das = self.options
        layers = 4.0 * (das.soft_mask == "update") * size.layer_parameters
        rows = 4.0 * (das.soft_mask == "update" and das.embeddings != "free") * size.head_parameters
        is_gated = das.contrast_cost == "exact" and das.contrast_weight > 0
        return AddedMemory(layers + rows, layers, is_gated * (size.heads + size.inner + size.hidden))

    def notes(self, measured: Mapping[int, Mapping[str, Finished[Any]]]) -> Notes:
        results = {n: stages[IMPORTANCE].result for n, stages in sorted(measured.items()) if IMPORTANCE in stages}
        left = {after: plasticity_under(self.options, result.plasticity) for after, result in results.items()}
        left = {after: layers for after, layers in left.items() if layers}
        known = next(iter(results.values()), None)
        warnings = unprotected(self.options, known.embeddings_share) if known else []
        warnings += [f"{_after(n)}, {text}" for n, layers in left.items() for text in saturated(self.options, layers)]
        rows = {_after(number): [_range(layers[kind]) for kind in KINDS] for number, layers in left.items()}
        return Notes([NoteTable(PLASTICITY, list(KINDS.values()), rows)] if rows else [], warnings)

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Masks the model by importance and prepares the contrast.

        Without a folder of stage `importance`, nothing is masked, and the contrast has no view of earlier knowledge.
        """
        from adapt.method.das import contrast, importance  # imported here, because they load torch

        self._setting = setting
        das, folder = self.options, setting.past.get(IMPORTANCE)
        known = importance.load_importance(folder, model) if folder else None
        if known and das.soft_mask != "none":
            masked = importance.with_floor(known.units, das.plasticity_floor)
            self._masks = importance.soft_mask(model, masked, das.soft_mask, known.embedding)
            self._plasticity = importance.mean_plasticity(masked)
        if das.contrast_weight:
            units = known.units if known else None
            self._contrast = contrast.contrast_of(model, das, units, setting.first_general)
        return model

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Adds `contrast_weight` times the contrast, averaged over the compared documents of the global batch."""
        if self._contrast is None:
            yield from super().losses(model, parts, objective, step, predictions)
            return
        for loss, added, contrasts in self._contrast.losses(model, parts):
            self._contrast.mean.add(contrasts.sum().double(), len(contrasts))
            yield loss, added

    def report(self) -> dict[str, float]:
        """Returns the mean contrast [nats] per document, and the mean of 1 - importance."""
        report = {"plasticity": self._plasticity}
        if self._contrast:
            report["contrast"] = self._contrast.mean.take()
        return report

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        from adapt.model.masked_updates import computed_with  # imported here, because it loads torch

        state, share = computed_with(state, self._masks), self.options.share
        if share == 1 or not state:
            return state
        return weight_means.between(weight_means.weights_of_model(self._setting, self._setting.anchor), state, share)


def _check_replayed(mixture: MixtureConfig) -> None:
    if not mixture.replays:
        raise ConfigError(
            "das.contrast_text is general, but no general text is replayed",
            "name general text in mixture.replay_paths, or set das.contrast_text to all",
        )
    if not (mixture.replay_fraction or mixture.replay_last):
        raise ConfigError(
            "das.contrast_text is general, but mixture.replay_fraction 0 replays no general text",
            "set mixture.replay_fraction or mixture.replay_last above 0, or das.contrast_text to all",
        )


def _after(domains: int) -> str:
    return f"after {domains} domain{'' if domains == 1 else 's'}"


def _range(layers: Sequence[float]) -> str:
    return f"{sum(layers) / len(layers):.2f}\n{min(layers):.2f} to {max(layers):.2f}"
