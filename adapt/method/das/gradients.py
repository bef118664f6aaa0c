"""The gradients that importance is made of, measured on the devices of a cluster: some batches of rows each."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING

from adapt.config import Config
from adapt.errors import TrainingError
from adapt.method.das.stage import Measuring

if TYPE_CHECKING:
    import numpy as np
    import torch

    from adapt.method.das.measure import Judged, MeasureSettings, Sums
    from adapt.train.over_rows import Share

PASS_TOKENS = 4_096
"""Text in one pass where `training.micro_batch` does not say [tokens]: enough to keep a device busy."""


def gradients_on_cluster(measuring: Measuring, rows: np.ndarray) -> tuple[Sums, float]:
    """Batches of at most `das.importance_batch` rows, all of about one size, since small batches have large gradients.

    Returns:
        The sums over all batches, and the seconds that devices were held.

    Raises:
        ModelError: there is no dropout to measure with.
        TrainingError: gradients are not finite.
    """
    from adapt.train.over_rows import batches_of, over_rows

    batches = batches_of(rows, measuring.options.importance_batch)
    sequences = sequences_in_a_pass(measuring.config)
    parts, seconds = over_rows(partial(measure_share, measuring), batches, measuring.config, sequences)
    sums: Sums = reduce(add, parts)
    if not all(sizes.isfinite().all() for sizes in sums.units.values()):
        raise TrainingError(
            "gradients are not finite, so importance cannot be measured",
            "check the loss of the training before; a smaller training.learning_rate may help",
        )
    return sums, seconds


def measure_share(measuring: Measuring, device: torch.device, precision: str, share: Share) -> Sums:
    """One device's share of the batches."""
    from adapt.method.das.criteria import weight_sizes
    from adapt.method.das.measure import gate_sizes
    from adapt.method.das.views import injected
    from adapt.method.measuring.rows import batches_at, model_on
    from adapt.model.layers.units import Gates

    model = model_on(device, measuring.config, measuring.pretrained)
    gates, (loss, marks) = Gates(model), _loss(measuring)
    views = injected(model, measuring.options.injected_dropout) if measuring.about == "general" else None
    settings = measure_settings(measuring, precision)
    batches = batches_at(measuring.text, share, measuring.config.training.sequence_length, marks)
    with views.on() if views else nullcontext():
        if measuring.options.importance == "gate":
            return gate_sizes(model, gates, loss, batches, settings)
        return weight_sizes(model, loss, batches, settings, measuring.options.importance)


def _loss(measuring: Measuring) -> tuple[Judged, tuple[str, ...]]:
    """What units are judged by, and the columns that it needs beside the tokens."""
    from adapt.method.das.views import Disagreement
    from adapt.model.tokenizer import load_tokenizer
    from adapt.objective.build import make

    config, pretrained = measuring.config, measuring.pretrained
    if measuring.about == "general":
        return Disagreement(), ()
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    objective = make(config.objective, tokenizer, config.seed)
    return objective, objective.columns()


def measure_settings(measuring: Measuring, precision: str) -> MeasureSettings:
    """How gradients are taken in a precision that the device has."""
    import torch

    from adapt.method.das.measure import MeasureSettings

    config, das, is_general = measuring.config, measuring.options, measuring.about == "general"
    views = 2 if is_general else 1
    return MeasureSettings(
        granularity=das.granularity,
        dropout_seed=config.seed if is_general else None,
        embeddings="free" if is_general else das.embeddings,  # which tokens general knowledge needs is not known
        rows=max(1, sequences_in_a_pass(config) // views),
        dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
    )


def sequences_in_a_pass(config: Config) -> int:
    """How many sequences pass a device at once: `training.micro_batch`, or enough to keep a device busy."""
    training = config.training
    return max(1, PASS_TOKENS // training.sequence_length) if training.micro_batch == "auto" else training.micro_batch
