"""DAS (arXiv 2302.03241): what matters to past domains moves less, and what is new is set against what was known."""

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
from adapt.method.base import Added, AddedMemory, Domain, Method, Notes, NoteTable, Setting
from adapt.method.das.stage import MeasureImportance, plasticity_under, saturated, unprotected
from adapt.method.interpolate import between, weights_of_model
from adapt.method.measurement import check_prepared
from adapt.model.architecture import check_units
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from adapt.method.das.contrast import Contrast
    from adapt.method.das.importance import SoftMask
    from adapt.model.size import ModelSize
    from adapt.objective.objective import Corrupted, Objective
    from adapt.runner import Finished, Stage

IMPORTANCE = "importance"
"""What the method calls its stage."""
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
PLASTICITY = "plasticity left, 1 - importance: mean over layers, below it the least and the most"


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


class Das(Method):
    """Soft masks and contrast. Both are made of importance, which the stage before has measured."""

    Options = DasOptions
    kind: ClassVar[str] = "das"

    def __init__(self, options: DasOptions) -> None:
        super().__init__(options)
        self.options: DasOptions = options
        self._mask: SoftMask | None = None
        self._contrast: Contrast | None = None
        self._setting = Setting()
        self._plasticity = 1.0
        self._total: Tensor | None = None  # contrast summed since the last report, where the model is
        self._documents = 0  # that it is of, as the host knows them

    def settings(self) -> dict[str, Any]:
        """What training uses; how importance is measured is in the key of the stage that does."""
        das = self.options
        counts = {"economy_fraction": das.contrast_cost == "economy", "contrast_text": das.contrast_text != "all"}
        contrast = [name for name in CONTRAST if counts.get(name, True)]
        masks = ["plasticity_floor"] if das.soft_mask != "none" else []
        shares = ["share"] if das.share < 1 else []
        used = ["soft_mask", *masks, *shares, *(contrast if das.contrast_weight else [])]
        return {name: getattr(das, name) for name in used}

    def check(self, config: Config, model: Path) -> None:
        """Refuses models whose units are not known, and text that is not prepared before it is measured on.

        Raises:
            ConfigError: the corpus is streamed, the importance of embeddings does not go with that of units, or general
                text is to be contrasted and none is replayed.
            ModelError: the units of the model are not known.
        """
        if not self._measures:
            return
        check_units(model)
        das = self.options
        if das.general_importance != "none":
            check_prepared(config, "importance", "set das.general_importance to none")
        needed = {"magnitude": ("free",), "gate": ("free", "gradient", "frequency")}
        if das.embeddings not in needed.get(das.importance, ("free", "frequency")):
            raise ConfigError(
                f"das.embeddings is {das.embeddings}, which das.importance {das.importance} does not measure",
                f"set das.embeddings to {needed.get(das.importance, ('frequency',))[0]}, or das.importance to gate",
            )
        if das.contrast_weight and das.contrast_text == "general":
            _check_replayed(config.mixture)

    def before(self, first: Domain) -> Mapping[str, Stage[Any]]:
        """Importance for general knowledge, read off the model to begin with on what it learns first."""
        if not self._measures or self.options.general_importance == "none":
            return {}
        return {IMPORTANCE: self._measured("general", first, None)}

    def after_domain(self, learnt: Domain) -> Mapping[str, Stage[Any]]:
        """Importance for the domain, read off the model that has just learnt it, and for all before."""
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
        """The passes that the contrast adds. With several micro-batches, all trained views are also computed before.

        Where general text alone is compared, a pass can still be of nothing else, and here its share is not known: this
        is then the most that a pass takes, and more than a training takes on the whole.
        """
        das = self.options
        if not das.contrast_weight:
            return Added()
        share = das.economy_fraction if das.contrast_cost == "economy" else 1.0
        is_exact = is_known and das.contrast_cost == "exact"
        trained, seen = (2.0, 0.0) if is_exact else (share, share * is_known)
        return Added(trained, seen + (1 + trained) * (passes > 1))

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Masks that scale updates keep the starting parameters, whole on every rank; gates keep their products."""
        das = self.options
        layers = 4.0 * (das.soft_mask == "update") * size.layer_parameters
        rows = 4.0 * (das.soft_mask == "update" and das.embeddings != "free") * size.head_parameters
        is_gated = das.contrast_cost == "exact" and das.contrast_weight > 0
        return AddedMemory(layers + rows, layers, is_gated * (size.heads + size.inner + size.hidden))

    def notes(self, measured: Mapping[int, Mapping[str, Finished[Any]]]) -> Notes:
        """How much of a step layers still make, and which hardly make any."""
        results = {n: stages[IMPORTANCE].result for n, stages in sorted(measured.items()) if IMPORTANCE in stages}
        left = {after: plasticity_under(self.options, result.plasticity) for after, result in results.items()}
        left = {after: layers for after, layers in left.items() if layers}
        known = next(iter(results.values()), None)
        warnings = unprotected(self.options, known.embeddings_share) if known else []
        warnings += [f"{_after(n)}, {text}" for n, layers in left.items() for text in saturated(self.options, layers)]
        rows = {_after(number): [_range(layers[kind]) for kind in KINDS] for number, layers in left.items()}
        return Notes([NoteTable(PLASTICITY, list(KINDS.values()), rows)] if rows else [], warnings)

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Masks and gates.

        Args:
            model: before it is compiled and wrapped.
            setting: its `past` may have `importance`, a folder; without it nothing is masked, and nothing known to be
                told apart from.

        Raises:
            ModelError: the importance is another model's; or views are to be contrasted that nothing makes differ.
        """
        from adapt.method.das.contrast import Contrast, injected
        from adapt.method.das.importance import SoftMask, load_importance, mean_plasticity, with_floor
        from adapt.model.layers import Gates

        self._setting = setting
        das, folder = self.options, setting.past.get(IMPORTANCE)
        importance = load_importance(folder, model) if folder else None
        if importance and das.soft_mask != "none":
            masked = with_floor(importance.units, das.plasticity_floor)
            self._mask = SoftMask(masked, das.soft_mask, embedding=importance.embedding)
            self._mask.prepare_model(model, setting)
            self._plasticity = mean_plasticity(masked)
        if das.contrast_weight:
            gates, known = (Gates(model), importance.units) if importance else (None, None)
            views = injected(model, das.injected_dropout)
            self._contrast = Contrast(das, gates, known, views, setting.first_general)
        return model

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Adds the weight times the mean contrast over the documents of the global batch that are compared."""
        if self._contrast is None:
            yield from super().losses(model, parts, objective, step, predictions)
            return
        for loss, added, contrasts in self._contrast.losses(model, parts):
            total = contrasts.sum().double()
            self._total = total if self._total is None else self._total + total
            self._documents += len(contrasts)
            yield loss, added

    def report(self) -> dict[str, float]:
        """The mean contrast [nats] of all documents compared since the last report, and how much units still move.

        All ranks call it.
        """
        report = {"plasticity": self._plasticity}
        if self._contrast:
            report["contrast"] = self._contrast.mean_of_all(self._total, self._documents)
            self._total, self._documents = None, 0
        return report

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights without masks, mixed with those of the model before."""
        state, share = self._mask.merge(state) if self._mask else state, self.options.share
        if share == 1 or not state:
            return state
        return between(weights_of_model(self._setting, self._setting.anchor), state, share)


def _check_replayed(mixture: MixtureConfig) -> None:
    if not mixture.replay_paths:
        raise ConfigError(
            "das.contrast_text is general, but no general text is replayed",
            "name some in mixture.replay_paths, or set das.contrast_text to all",
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
