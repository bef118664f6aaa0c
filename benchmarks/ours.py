"""Our side of the training benchmarks: the product's own loop and engine, on one device, without Ray."""

import os
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adapt.train.precision import Precision

from benchmarks.texts import Case, build_model, documents, packed_rows, tokenizer_of


def train(case: Case, precision: "Precision", steps: int, warm_up: int, off: str | None = None) -> dict[str, Any]:
    """Trains and measures.

    Args:
        case: what.
        precision: fp32 or bf16.
        steps: measured.
        warm_up: before them.
        off: a technique to switch off (see `benchmarks.ablation`).

    Returns:
        tokens_per_s and peak_bytes.
    """
    import torch
    import torch.distributed as dist

    from adapt.config import ObjectiveConfig, TrainingConfig
    from adapt.method.base import Method
    from adapt.model.apart import keep_documents_apart
    from adapt.objective.mlm import MaskedLanguageModelling
    from adapt.train.engine import Engine
    from adapt.train.loop import Loop
    from adapt.train.options import apply_options
    from benchmarks.common import peak_bytes
    from benchmarks.switches import switched_off

    alone()
    training = TrainingConfig(
        max_steps=warm_up + steps,
        global_batch_size=case.rows,
        sequence_length=case.length,
        learning_rate=1e-4,
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with switched_off(off):
        model = build_model(case).eval()
        keep_documents_apart(model)
        apply_options(model.train().to(device), training, device)
        engine = Engine(model, training, 0, precision, case.rows, 1)
        objective = MaskedLanguageModelling(ObjectiveConfig(), tokenizer_of(case), 0)
        loop = Loop(engine, objective, Method(), training, case.rows, warm_up + steps, 0)
        tokens = 0
        for step, columns in enumerate(batches(case, warm_up + steps)):
            if step == warm_up:
                began = settled()
            _, count, _ = loop.step(columns, step, training.learning_rate)
            tokens += count if step >= warm_up else 0
        seconds = settled() - began
    dist.destroy_process_group()
    return {"tokens_per_s": tokens / seconds, "peak_bytes": peak_bytes()}


def alone() -> None:
    """A process group of one rank."""
    import torch.distributed as dist

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    dist.init_process_group("gloo")


def settled() -> float:
    """The time, once the device has done its work."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def batches(case: Case, steps: int) -> Iterator[dict[str, Any]]:
    """Global batches in the form of `adapt.corpus.stream.Feed`."""
    import numpy as np

    tokens, starts = packed_rows(case, documents(case))
    for step in range(steps):
        rows = (np.arange(case.rows) + step * case.rows) % len(tokens)
        yield {
            "tokens": tokens[rows],
            "starts": starts[rows],
            "lengths": np.full(case.rows, case.length),
            "epochs": np.zeros(case.rows, np.int64),
            "rows": rows,
        }
