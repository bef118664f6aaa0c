"""The table of objectives, their options, and their parts of the keys of stages. This module loads no torch."""

from typing import TYPE_CHECKING, Any

from adapt.config import Config, ObjectiveConfig, section_of, what
from adapt.config.kinds import Kinds

if TYPE_CHECKING:
    from adapt.objective.objective import Objective

OBJECTIVES: "Kinds[type[Objective]]" = Kinds(
    "objective.kind",
    {
        "mlm": "adapt.objective.masking:MaskedLanguageModelling",
        "whole_word": "adapt.objective.masking:WholeWordMasking",
        "entity": "adapt.objective.masking:EntityMasking",
        "span": "adapt.objective.masking:SpanMasking",
        "difference": "adapt.objective.masking:DifferenceMasking",
        "causal": "adapt.objective.objective:CausalLanguageModelling",
        "causal_detour": "adapt.objective.objective:CausalDetour",
    },
    base="adapt.objective.masking:Masking",
    options={},
)
"""The objectives, keyed by their names in `objective.kind`. The options of masking are fields of section `objective`.
Further options are in the section with the objective's name."""


def objective_options(config: Config) -> Any:
    """Returns the options of the configured objective: an instance of their dataclass, or None if it has no options."""
    given = config.objective_options
    return OBJECTIVES.read(config.objective.kind, {}) if given is None else given


def trained_pooling(config: Config) -> str | None:
    """Returns the pooling with which the configured objective trains sentence vectors; None if it trains none."""
    pooling: str | None = getattr(objective_options(config), "pooling", None)
    return pooling


def check_objective(config: Config) -> None:
    """Refuses a user's own objective that is no subclass of `Masking`.

    Built-in objectives are not loaded, since they load torch.

    Raises:
        ConfigError: the objective cannot be imported, or is not a subclass of `Masking`.
    """
    if config.objective.kind not in OBJECTIVES:
        OBJECTIVES.load(config.objective.kind)


def predicted_fraction(objective: ObjectiveConfig) -> float:
    """Returns the share of the tokens that are predicted, at which the language-model head runs."""
    return 1.0 if objective.kind in ("causal", "causal_detour") else objective.mask_fraction


def sees_only_earlier(objective: ObjectiveConfig) -> bool:
    """Whether the objective makes the attention of an encoder causal during training."""
    return objective.kind == "causal_detour"


def weighs_words(objective: ObjectiveConfig) -> bool:
    """Whether the objective needs the weights of the domain's words, which a stage computes before the training."""
    return objective.kind == "difference"


def measured_objective(config: Config) -> ObjectiveConfig:
    """Returns the objective of held-out losses, which does not depend on how the model was trained.

    Encoders predict single tokens, `evaluation.mask_fraction` of each document. Losses under different masking cannot
    be compared: at 30% the same model has a higher loss than at 15%. Decoders predict each next token.
    """
    if config.objective.kind == "causal":
        return config.objective
    return ObjectiveConfig(mask_fraction=config.evaluation.mask_fraction)


def measured_what(config: Config) -> dict[str, Any]:
    """Returns what the objective of held-out losses adds to the key of a stage."""
    return what(measured_objective(config))


def objective_what(config: Config) -> dict[str, Any]:
    """Returns what the objective adds to the key of a stage. A user's own objective adds its source too."""
    kind, options = config.objective.kind, objective_options(config)
    own = {} if options is None else {section_of(kind): what(options)}
    return {**what(config.objective), **own, **OBJECTIVES.source(kind)}
