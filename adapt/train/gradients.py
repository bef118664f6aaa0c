"""The gradients that importance is made of, measured on the devices of a cluster: some batches of rows each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from adapt.errors import TrainingError
from adapt.runtime import gpus_per_worker, hide_unreserved_gpus, user_errors
from adapt.train.importance import EPOCH, Measuring

if TYPE_CHECKING:
    import torch

    from adapt.method.measure import Loss, Settings, Sums
    from adapt.objective.base import Batch

PASS_TOKENS = 4_096
"""Text in one pass where `training.micro_batch` does not say [tokens]: enough to keep a device busy."""

Share = list[tuple[int, np.ndarray]]
"""Batches: their numbers, and the rows of each."""


def gradients_on_cluster(measuring: Measuring, rows: np.ndarray) -> tuple[Sums, float]:
    """Batches of at most `das.importance_batch` rows, shared out to as many Ray tasks as there are workers.

    A batch is measured whole by one task, so what it gives does not depend on their number.

    Returns:
        The sums over all batches, and the seconds that devices were held.

    Raises:
        ModelError: there is no dropout to measure with.
        TrainingError: gradients are not finite.
    """
    import ray

    resources, size = measuring.config.resources, measuring.config.das.importance_batch
    batches = list(enumerate(np.array_split(rows, -(-len(rows) // size))))  # alike: small ones have large gradients
    workers = min(resources.workers, len(batches))
    task = ray.remote(num_cpus=1, num_gpus=min(1.0, gpus_per_worker(resources)))(_measure_in_own_precision)

    def measured(asked: Measuring) -> list[tuple[Sums, float, str]]:
        with user_errors():
            return list(ray.get([task.remote(asked, batches[worker::workers], workers) for worker in range(workers)]))

    parts = measured(measuring)
    seconds = sum(each for _, each, _ in parts)
    if len({precision for *_, precision in parts}) > 1:  # of `auto`: which batch met which device must not matter
        parts = measured(_in_fp32(measuring))
        seconds += sum(each for _, each, _ in parts)
    sums: Sums = reduce(add, (part for part, *_ in parts))
    if not all(each.isfinite().all() for each in sums.units.values()):
        raise TrainingError(
            "gradients are not finite, so importance cannot be measured",
            "check the loss of the training before; a smaller training.learning_rate may help",
        )
    return sums, seconds


def _in_fp32(measuring: Measuring) -> Measuring:
    config = measuring.config
    return replace(measuring, config=replace(config, training=replace(config.training, precision="fp32")))


def _measure_in_own_precision(measuring: Measuring, share: Share, workers: int) -> tuple[Sums, float, str]:
    """The Ray task: one device's share of the batches, and the precision that it chose."""
    hide_unreserved_gpus()
    import torch

    from adapt.train.precision import resolve

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return *_measure(measuring, share, workers), resolve(measuring.config.training.precision, device)


def _measure(measuring: Measuring, share: Share, workers: int) -> tuple[Sums, float]:
    """One device's share of the batches, and how long it was held [s]."""
    start = time.monotonic()
    import torch

    from adapt.method.measure import gate_sizes
    from adapt.method.views import injected
    from adapt.model.dropout import use_quick_dropout
    from adapt.model.load import load_model
    from adapt.model.units import Gates

    config, pretrained = measuring.config, measuring.pretrained
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    causal, dropout = config.objective.kind == "causal", config.model.attention_dropout
    model = load_model(pretrained.model, causal, pretrained.trust_remote_code, dropout)
    if device.type == "cpu":
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // workers))
        use_quick_dropout(model)
    torch.nn.Module.to(model, device)
    gates, (loss, marks) = Gates(model), _loss(measuring)
    views = injected(model, config.das.injected_dropout) if measuring.about == "general" else None
    with views.on() if views else nullcontext():
        sums = gate_sizes(model, gates, loss, _batches(measuring, share, marks, device), _settings(measuring, device))
    return sums, time.monotonic() - start


def _loss(measuring: Measuring) -> tuple[Loss, tuple[str, ...]]:
    """What units are judged by, and the columns that it needs beside the tokens."""
    from adapt.method.views import Disagreement
    from adapt.model.load import load_tokenizer
    from adapt.objective.build import make

    config, pretrained = measuring.config, measuring.pretrained
    if measuring.about == "general":
        return Disagreement(), ()
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    objective = make(config.objective, tokenizer, config.seed)
    return objective, objective.columns()


def _settings(measuring: Measuring, device: torch.device) -> Settings:
    import torch

    from adapt.method.measure import Settings
    from adapt.train.precision import resolve

    config, is_general = measuring.config, measuring.about == "general"
    training, views = config.training, 2 if is_general else 1
    most = max(1, PASS_TOKENS // training.sequence_length) if training.micro_batch == "auto" else training.micro_batch
    has_bf16 = resolve(training.precision, device) == "bf16"
    return Settings(
        granularity=config.das.granularity,
        dropout_seed=config.seed if is_general else None,
        embeddings="free" if is_general else config.das.embeddings,  # which tokens general knowledge needs is not known
        rows=max(1, most // views),
        dtype=torch.bfloat16 if has_bf16 else torch.float32,
    )


def _batches(
    measuring: Measuring, share: Share, marks: tuple[str, ...], device: torch.device
) -> Iterator[tuple[int, Batch]]:
    from adapt.objective.base import Batch

    stream, length = measuring.text, measuring.config.training.sequence_length
    for number, rows in share:
        columns: dict[str, Any] = stream.take(rows.tolist(), length, marks)
        yield number, Batch.of({**columns, "epochs": np.full(len(rows), EPOCH), "rows": rows}, device)
