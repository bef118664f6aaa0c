"""Measures the training loop of our jobs on one device and without Ray, for the training benchmarks."""

from __future__ import annotations

import atexit
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from benchmarks.texts import Case, build_model, steps_of, tokenizer_of

if TYPE_CHECKING:
    from adapt.train.loop import Loop
    from adapt.train.model_options import Precision


def train(
    case: Case,
    precision: Precision,
    steps: int,
    warm_up: int,
    off: str | None = None,
    zero_stage: int = 0,
    compiled: bool = False,
) -> dict[str, Any]:
    """Trains a model and measures speed, memory and losses.

    Args:
        case: the model and the text.
        precision: precision of the arithmetic.
        steps: number of measured steps.
        warm_up: number of steps before the measured steps.
        off: name of a technique to switch off (see `benchmarks.switches`), or None.
        zero_stage: ZeRO stage.
        compiled: whether to compile the model's layers with torch.compile.

    Returns:
        tokens_per_s, tokens_per_cpu_s (CPU time of all threads), peak_bytes, losses of all steps, and engine.
    """
    from adapt.train.loop import Ahead
    from benchmarks.common import peak_bytes
    from benchmarks.switches import switched_off

    alone()
    losses, tokens, began, cpu = [], 0, 0.0, 0.0
    with switched_off(off):
        loop = _loop(case, precision, warm_up + steps, zero_stage, compiled)
        ahead = Ahead(steps_of(case, warm_up + steps), loop.prepared, loop.engine.device)
        for step in range(warm_up + steps):
            if step == warm_up:
                began, cpu = settled(), time.process_time()
            rows = ahead.take()
            assert rows
            loss, count, _ = loop.update(rows, step, loop.training.learning_rate, meanwhile=ahead.fetch)
            losses.append(loss)
            tokens += count if step >= warm_up else 0
        seconds, cpu = settled() - began, time.process_time() - cpu
    return {
        "tokens_per_s": tokens / seconds,
        "tokens_per_cpu_s": tokens / cpu,
        "peak_bytes": peak_bytes(),
        "losses": [float(loss) for loss in losses],
        "engine": type(loop.engine).__name__,
    }


def _loop(case: Case, precision: Precision, steps: int, zero_stage: int, compiled: bool) -> Loop:
    import torch

    from adapt.config import ObjectiveConfig, TrainingConfig
    from adapt.method.base import Method
    from adapt.model.packing.isolation import keep_documents_apart
    from adapt.objective.masking import make
    from adapt.train.engine import Engine
    from adapt.train.loop import Loop
    from adapt.train.model_options import apply_options

    training = TrainingConfig(
        max_steps=steps,
        global_batch_size=case.rows,
        sequence_length=case.length,
        learning_rate=1e-4,
        compile=compiled,
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = case.micro_batch or case.rows
    model = build_model(case).eval()
    keep_documents_apart(model)
    apply_options(model.train().to(device), training, device)
    engine = Engine(model, training, zero_stage, precision, size, case.rows // size)
    objective = make(ObjectiveConfig(kind="causal" if case.causal else "mlm"), tokenizer_of(case), 0)
    return Loop(engine, objective, Method(), training, size, steps, 0)


def alone() -> None:
    """Initializes a process group with a single rank, which ends with the process."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        return
    atexit.register(dist.destroy_process_group)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def settled() -> float:
    """Waits until the device has finished its work, and returns the time."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
