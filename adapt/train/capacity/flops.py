"""Floating point operations of training, from the dimensions of the model, and a limit of them as a number of steps.

Loads no heavy library: a plan asks too. Kaplan et al., arXiv 2001.08361, section 2.1; Chowdhery et al., arXiv
2204.02311, appendix B.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from adapt.config import Config, ObjectiveConfig
from adapt.method.base import Added
from adapt.method.table import method_of
from adapt.model.size import ModelSize
from adapt.support.errors import ConfigError


@dataclass(frozen=True)
class Workload:
    """What passes through the model."""

    context: float
    """Tokens that a token attends to, on average."""
    predicted: float
    """Share of the tokens that are predicted."""
    added: Added = field(default_factory=Added)


def workload(
    objective: ObjectiveConfig, sequence_length: int, document_length: float | None = None, added: Added | None = None
) -> Workload:
    """The work of a training run.

    Args:
        objective: says how much is predicted.
        sequence_length: of a row [tokens]; no document is longer within it.
        document_length: mean of the corpus [tokens]; None where it is not known yet.
        added: by the method; None for nothing.
    """
    context, added = min(sequence_length, document_length or sequence_length), added or Added()
    passed = replace(added, trained=added.trained + added.per_document / context)
    return Workload(context + added.attended, predicted_fraction(objective), passed)


def predicted_fraction(objective: ObjectiveConfig) -> float:
    """Share of the tokens at which the language-model head runs."""
    return 1.0 if objective.kind == "causal" else objective.mask_fraction


def forward_flops(size: ModelSize, work: Workload) -> float:
    """FLOPs of a forward pass, per token: two for each matrix element. Look-ups, norms and activations do not count."""
    return layer_flops(size, work.context) + 2 * size.head_parameters * work.predicted


def layer_flops(size: ModelSize, context: float) -> float:
    """The part of the layers: their matrices, and queries with keys and weights with values.

    Causal attention is counted whole, as is usual.
    """
    return 2 * size.layer_parameters + 4 * size.attention * context * size.layers


def training_flops(size: ModelSize, work: Workload, recompute: bool = False) -> float:
    """FLOPs of a forward and backward pass, per token. A backward pass costs as much as two forward passes.

    Args:
        size: of the model.
        work: what passes through it.
        recompute: count the layers' second forward pass of gradient checkpointing. It is work done, but does not count
            for the model FLOPs utilization (MFU).
    """
    layers, added = layer_flops(size, work.context), work.added
    recomputed = layers * (1 + added.trained) if recompute else 0.0
    return 3 * forward_flops(size, work) + layers * (3 * added.trained + added.seen) + recomputed


def mean_length(corpus: Mapping[str, Any]) -> float | None:
    """Mean length of the documents of a prepared corpus [tokens], from its record's metrics."""
    documents, tokens = corpus.get("train_documents"), corpus.get("train_tokens")
    return tokens / documents if documents and tokens else None


def summed_sizes(corpora: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The sizes of several prepared corpora as if they were one, from their records' metrics."""
    prepared = list(corpora)
    return {name: sum(corpus.get(name) or 0 for corpus in prepared) for name in ("train_documents", "train_tokens")}


def with_flops_as_steps(
    config: Config, size: ModelSize | None, document_length: float | None, is_known: bool = True
) -> Config:
    """The configuration with `training.max_flops` as a limit of steps, rounded up to whole ones.

    Steps must not depend on how the work is done, so what is computed twice to save memory does not count, and methods
    count as if a step were one pass.

    Args:
        config: of the training.
        size: of the model that is trained; None where it is not known.
        document_length: mean of the text [tokens]; None where it is not known: then documents fill their rows.
        is_known: whether there are stages of the method before it.

    Raises:
        ConfigError: the size of the model is not known.
    """
    training = config.training
    if not training.max_flops:
        return config
    if size is None:
        raise ConfigError(
            "training.max_flops is set, but config.json does not name the model's dimensions in a known way",
            "set training.max_steps or training.max_tokens",
        )
    added = method_of(config).added_passes(is_known)
    work = workload(config.objective, training.sequence_length, document_length, added)
    a_step = training_flops(size, work) * training.global_batch_size * training.sequence_length
    steps = max(1, ceil(training.max_flops / a_step))
    limits = replace(training, max_flops=None, max_steps=min(steps, training.max_steps or steps))
    return replace(config, training=limits)
