"""Measures the importance of units on a cluster. Each device sums the sizes of gradients over its rows."""

from contextlib import nullcontext
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from adapt.config import Config
from adapt.corpus.token_shards import text_of
from adapt.method import measurement, row_sums
from adapt.method.das import contrast, importance
from adapt.method.das.criteria import Judged, MeasureSettings, Sums, gate_sizes, magnitudes, weight_sizes
from adapt.method.das.stage import ImportanceMeasured, Measuring
from adapt.model import locate, safeguards
from adapt.model.layers import Gates
from adapt.model.load import load_model, model_class
from adapt.model.tokenizer import load_config, load_tokenizer
from adapt.objective.masking import make
from adapt.objective.table import objective_options
from adapt.support.errors import TrainingError
from adapt.train.over_rows import Share, batches_of, over_rows

PASS_TOKENS = 4_096
"""Number of tokens per pass if `training.micro_batch` is `auto`. A pass of this size keeps a device busy."""


def measure_importance(measuring: Measuring, folder: Path) -> ImportanceMeasured:
    """Measures importance on the connected cluster, and writes `importance.safetensors` into `folder`.

    Does not apply `das.plasticity_floor`, because otherwise each merge with later importance would scale the earlier
    importance down again. Each training run applies the floor when it loads the file.
    """
    das, rows, model = measuring.options, rows_to_measure(measuring), _skeleton(measuring.pretrained)
    previous = importance.load_importance(Path(measuring.previous), model) if measuring.previous else None
    sums, seconds = gradients_on_cluster(measuring, rows) if len(rows) else (_without_text(measuring, model), 0.0)
    own = importance.normalize(sums.means, das.normalize)
    own_tokens = importance.normalize_tokens(sums.tokens) if sums.tokens is not None else None
    known, known_tokens = (previous.units, previous.embedding) if previous else (None, None)
    together = importance.accumulate(known, own) if known else own
    importance.save_importance(
        importance.Importance(together, importance.joined_importance(known_tokens, own_tokens), torch.from_numpy(rows)),
        model,
        folder,
    )
    left = importance.plasticity(together)
    least = min(min(layers) for layers in left.values())
    return ImportanceMeasured(len(rows), sums.groups, sums.text, seconds, left, importance.plasticity(own), least)


def rows_to_measure(measuring: Measuring) -> np.ndarray:
    """Returns the numbers of the rows to measure on, int64. The array is empty if the criterion needs no text."""
    das, config = measuring.options, measuring.config
    is_random = measuring.about == "general" and das.general_importance == "random"
    if is_random or das.importance == "magnitude":
        return np.zeros(0, np.int64)
    length = config.training.sequence_length
    return row_sums.sampled_rows(measuring.corpora, length, das.importance_sequences, config.seed, "importance")


def _skeleton(pretrained: locate.Pretrained) -> PreTrainedModel:
    """Returns the model on the meta device, with shapes but without weights."""
    config = load_config(pretrained.model, pretrained.trust_remote_code)
    with safeguards.quiet(), torch.device("meta"):
        model: PreTrainedModel = model_class(config).from_config(config, trust_remote_code=pretrained.trust_remote_code)
    return model


def _without_text(measuring: Measuring, model: Any) -> Sums:
    """Returns the sizes of units for criteria that need no text: random numbers, or norms of the units' weights."""
    if measuring.about == "general" and measuring.options.general_importance == "random":
        return Sums(importance.random_sizes(model, measuring.config.seed), None, 0, 0)
    pretrained, causal = measuring.pretrained, measuring.config.objective.kind == "causal"
    return Sums(magnitudes(load_model(pretrained.model, causal, pretrained.trust_remote_code)), None, 0, 0)


def gradients_on_cluster(measuring: Measuring, rows: np.ndarray) -> tuple[Sums, float]:
    """Sums sizes of gradients over batches of rows.

    The batches have about equal sizes, because smaller batches have larger gradients.

    Returns:
        The sums over all batches, and the device seconds used.

    Raises:
        ModelError: the model has no dropout that makes two passes differ.
        TrainingError: gradients are not finite.
    """
    batches = batches_of(rows, measuring.options.importance_batch)
    sequences = sequences_in_a_pass(measuring.config)
    sizes = measurement.ImportedFunction("adapt.method.das.unit_sizes:sizes_of_share")
    parts, seconds = over_rows(partial(sizes, measuring), batches, measuring.config, sequences)
    sums: Sums = reduce(add, parts)
    if not all(sizes.isfinite().all() for sizes in sums.units.values()):
        raise TrainingError(
            "gradients are not finite, so importance cannot be measured",
            "check the loss of the previous training run; a smaller training.learning_rate may help",
        )
    return sums, seconds


def sizes_of_share(measuring: Measuring, device: torch.device, precision: str, share: Share) -> Sums:
    """Measures importance on one device's share of the batches, in a Ray task."""
    model = row_sums.model_on(device, measuring.config, measuring.pretrained)
    gates, (loss, marks) = Gates(model), _loss(measuring)
    views = contrast.injected(model, measuring.options.injected_dropout) if measuring.about == "general" else None
    settings = measure_settings(measuring, precision)
    batches = row_sums.batches_at(text_of(measuring.corpora), share, measuring.config.training.sequence_length, marks)
    with views.on() if views else nullcontext():
        if measuring.options.importance == "gate":
            return gate_sizes(model, gates, loss, batches, settings)
        return weight_sizes(model, loss, batches, settings, measuring.options.importance)


def _loss(measuring: Measuring) -> tuple[Judged, tuple[str, ...]]:
    """Returns the loss whose gradients measure importance, and the columns that it needs in addition to the tokens."""
    config, pretrained = measuring.config, measuring.pretrained
    if measuring.about == "general":
        return contrast.Disagreement(), ()
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    objective = make(config.objective, tokenizer, config.seed, objective_options(config))
    return objective, objective.columns()


def measure_settings(measuring: Measuring, precision: str) -> MeasureSettings:
    """Returns the options for measuring gradients in a precision that the device supports."""
    config, das, is_general = measuring.config, measuring.options, measuring.about == "general"
    views = 2 if is_general else 1
    return MeasureSettings(
        granularity=das.granularity,
        dropout_seed=config.seed if is_general else None,
        embeddings="free" if is_general else das.embeddings,  # general importance is not measured for tokens
        rows=max(1, sequences_in_a_pass(config) // views),
        dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
    )


def sequences_in_a_pass(config: Config) -> int:
    """Returns the number of sequences per pass: `training.micro_batch`, or for `auto` what fits in `PASS_TOKENS`."""
    training = config.training
    return max(1, PASS_TOKENS // training.sequence_length) if training.micro_batch == "auto" else training.micro_batch
