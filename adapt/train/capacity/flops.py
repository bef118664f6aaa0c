"""Computes the FLOPs of a training run from the model's dimensions, and converts a limit of FLOPs to steps.

See Kaplan et al., arXiv 2001.08361, section 2.1, and Chowdhery et al., arXiv 2204.02311, appendix B. The module loads
no heavy library, because `dontstop chain plan` uses it too.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from adapt.config import Config, ObjectiveConfig
from adapt.method.base import Added
from adapt.method.table import method_of
from adapt.model.size import ModelSize
from adapt.objective.table import encoded_again, predicted_fraction
from adapt.support.errors import ConfigError
from adapt.train.schedule import shapes_of


@dataclass(frozen=True)
class Workload:
    """The properties of a training run's data and method that determine its FLOPs per token."""

    context: float
    """Mean number of tokens that a token attends to."""
    predicted: float
    """Share of the tokens that are predicted."""
    added: Added = field(default_factory=Added)


def workload(
    objective: ObjectiveConfig, sequence_length: float, document_length: float | None = None, added: Added | None = None
) -> Workload:
    """Describes the work of a training run.

    Args:
        objective: settings of the objective, which determine the share of predicted tokens.
        sequence_length: length of a row [tokens], which is the longest possible context.
        document_length: mean length of the corpus' documents [tokens]; None if not yet known.
        added: extra passes of the method. None if the method has no extra passes.
    """
    context, added = min(sequence_length, document_length or sequence_length), added or Added()
    passed = replace(added, trained=added.trained + added.per_document / context)
    return Workload(context + added.attended, predicted_fraction(objective), passed)


def added_work(config: Config, is_known: bool = True, passes: int = 1) -> Added:
    """Returns the extra work of the method and of the objective in a training pass.

    Args:
        config: configuration of the training run.
        is_known: whether the method's stages, such as a measurement of importance, ran before the training run.
        passes: number of micro-batches per step.
    """
    added = method_of(config).added_passes(is_known, passes)
    return replace(added, trained=added.trained + encoded_again(config))


def forward_flops(size: ModelSize, work: Workload) -> float:
    """Returns the FLOPs of a forward pass per token.

    A token needs two FLOPs per element of each matrix. Embedding look-ups, norms and activations are not counted.
    """
    return layer_flops(size, work.context) + 2 * size.head_parameters * work.predicted


def layer_flops(size: ModelSize, context: float) -> float:
    """Returns the FLOPs per token of the layers: their matrices, attention scores, and weighted sums of values.

    Causal attention counts like attention to all tokens of the context, as is usual.
    """
    return 2 * size.layer_parameters + 4 * size.attention * context * size.layers


def training_flops(size: ModelSize, work: Workload, recompute: bool = False, padding: float = 0.0) -> float:
    """Returns the FLOPs of a forward and backward pass per token. A backward pass costs two forward passes.

    Args:
        size: dimensions of the model.
        work: properties of the data and the method.
        recompute: whether to count the second forward pass of gradient checkpointing. Devices perform this pass, but it
            does not count for the model FLOPs utilization (MFU).
        padding: share of the positions in the layers that are padding. Devices compute these positions, but they do not
            count for the MFU. Additional attention to padding is not counted.
    """
    layers, added = layer_flops(size, work.context) / (1 - padding), work.added
    head = 2 * size.head_parameters * work.predicted
    recomputed = layers * (1 + added.trained) if recompute else 0.0
    return 3 * (layers + head) + layers * (3 * added.trained + added.seen) + recomputed


def mean_length(corpus: Mapping[str, Any]) -> float | None:
    """Returns the mean length of the documents of a prepared corpus [tokens], given the metrics of its record."""
    documents, tokens = corpus.get("train_documents"), corpus.get("train_tokens")
    return tokens / documents if documents and tokens else None


def summed_sizes(corpora: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Sums the numbers of documents and of tokens of several prepared corpora, given the metrics of their records."""
    prepared = list(corpora)
    return {name: sum(corpus.get(name) or 0 for corpus in prepared) for name in ("train_documents", "train_tokens")}


def with_flops_as_steps(
    config: Config, size: ModelSize | None, document_length: float | None, is_known: bool = True
) -> Config:
    """Converts `training.max_flops` to a limit of steps, rounded up to a whole number.

    The number of steps must not depend on the resources. Therefore, recomputation to save memory does not count, and
    the method's FLOPs are counted as if each step had a single micro-batch.

    Args:
        config: configuration of the training run.
        size: dimensions of the trained model. None if they are not known.
        document_length: mean length of documents [tokens]. None assumes that each document fills a row.
        is_known: whether the method's stages, such as a measurement of importance, ran before this training run.

    Raises:
        ConfigError: the dimensions of the model are not known.
    """
    training = config.training
    if not training.max_flops:
        return config
    if size is None:
        raise ConfigError(
            "training.max_flops is set, but config.json does not contain the model's dimensions under known names",
            "set training.max_steps or training.max_tokens",
        )
    added = added_work(config, is_known)
    left, steps = training.max_flops, 1
    for shape in shapes_of(training, sys.maxsize):
        work = workload(config.objective, shape.sequence_length, document_length, added)
        a_step = training_flops(size, work) * shape.step_tokens
        steps = max(1, shape.first + ceil(left / a_step))
        if steps <= shape.last:
            break
        left -= a_step * (shape.last - shape.first)
    limits = replace(training, max_flops=None, max_steps=min(steps, training.max_steps or steps))
    return replace(config, training=limits)
