"""Lists all methods by their names in `method.kind`, and creates and checks the configured method."""

from pathlib import Path

from adapt.config import Config
from adapt.config.kinds import Kinds
from adapt.method.base import Method
from adapt.model.architecture import try_unknown
from adapt.objective.table import RTD, needs_decoder, reads_own_vectors
from adapt.support.errors import ConfigError

METHODS: Kinds[type[Method]] = Kinds(
    "method.kind",
    {
        "plain": "adapt.method.base:Method",
        "das": "adapt.method.das.method:Das",
        "l2sp": "adapt.method.weight_pulls:L2sp",
        "ewc": "adapt.method.weight_pulls:Ewc",
        "distill": "adapt.method.distill:Distill",
        "derpp": "adapt.method.derpp.method:Derpp",
        "replay": "adapt.method.sequence_modes:Replay",
        "interpolate": "adapt.method.weight_means:Interpolated",
        "average": "adapt.method.weight_means:WindowAverage",
        "freeze": "adapt.method.frozen_parts:Freeze",
        "expand": "adapt.method.frozen_parts:Expand",
        "elle": "adapt.method.elle.method:Elle",
        "hat": "adapt.method.hat.method:Hat",
        "cpt": "adapt.method.hat.method:Cpt",
        "prompt": "adapt.method.domain_parameters:Prompted",
        "prefix": "adapt.method.domain_parameters:Prefixed",
        "demix": "adapt.method.domain_parameters:Demix",
        "lora": "adapt.method.lora.method:Lora",
        "adapters": "adapt.method.domain_parameters:Adapters",
        "one": "adapt.method.sequence_modes:One",
        "joint": "adapt.method.sequence_modes:Joint",
        "merge": "adapt.method.sequence_modes:MergedAfter",
    },
    base="adapt.method.base:Method",
)
"""The methods, keyed by their names in `method.kind`."""


WITH_GENERATOR = ("plain", "average", "interpolate", "l2sp", "replay")
"""Methods that work with objective.kind rtd, which trains a model and a generator. These methods change
neither the passes nor the modules."""


def method_of(config: Config) -> Method:
    """Returns the configured method with its options."""
    kind, options = METHODS.load(config.method.kind), config.method_options
    if options is None and kind.Options is not None:
        options = kind.Options()
    return kind(options)


def past_fraction(config: Config) -> float:
    """Returns the share of a training run's rows that come from earlier domains.

    The share is `sequence.replay_fraction` if this field is set. Otherwise it is the method's own `past_fraction`.
    """
    configured = config.sequence.replay_fraction
    return method_of(config).past_fraction if configured is None else configured


def check_method(config: Config, model: Path) -> None:
    """Checks that the method supports the job's configuration and the model.

    Raises:
        AdaptError: the method does not support the configuration or the model.
    """
    method, zero_stage = method_of(config), config.resources.zero_stage
    if zero_stage not in method.zero_stages:
        stages = ", ".join(map(str, method.zero_stages))
        raise ConfigError(
            f"method.kind {config.method.kind} does not run at resources.zero_stage {zero_stage}",
            f"choose one of {stages}",
        )
    if config.objective.kind == RTD and config.method.kind in METHODS and config.method.kind not in WITH_GENERATOR:
        raise ConfigError(
            f"method.kind {config.method.kind} cannot train the two models of objective.kind rtd, the"
            " generator and the discriminator",
            f"choose {', '.join(WITH_GENERATOR)}",
        )
    if reads_own_vectors(config) and any(
        getattr(type(method), hook) is not getattr(Method, hook) for hook in _CHANGING
    ):
        raise ConfigError(
            f"method.kind {config.method.kind} does not work with objective.kind {config.objective.kind}, because it"
            " would change the passes of this objective",
            "set method.kind to plain or replay",
        )
    method.check(config, model)
    if method.scores_in_blocks:
        causal = needs_decoder(config.objective)
        try_unknown(model, causal, config.model.trust_remote_code, in_blocks=method.scores_in_blocks)


_CHANGING = ("before", "prepare_model", "begin", "extra_loss", "losses", "before_step", "after_step")
"""Names of the hooks in which a method can measure or change the model, its loss or its gradients."""
