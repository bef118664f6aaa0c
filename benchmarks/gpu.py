"""Measures training on one GPU: speed relative to transformers' Trainer with its best settings, and FLOPs utilization.

Model FLOPs utilization (MFU) is relative to the rate of large matrix products measured on the device. `--quick` runs a
small case anywhere. `--cases base_grouped base_lines` runs these cases only.
"""

import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import ours, peer
from benchmarks.common import Options, machine, parser_of, quick_precision
from benchmarks.rounds import alternate
from benchmarks.texts import Case, build_model, documents

TARGETS = {"base_grouped": 1.6, "base_lines": 3.0, "base_grouped_mfu": 0.5}
STEPS, WARM_UP = 20, 5


def cases(options: Options) -> list[tuple[Case, int, bool]]:
    """Returns the cases to measure, each with its ZeRO stage and whether our side compiles the model."""
    case = partial(Case, data=options.data, models=options.models)
    if options.quick:
        return [(case("small", "grouped", 4, 128), 0, False), (case("small", "lines", 4, 128), 0, False)]
    return [
        (case("base", "grouped", 128, 512), 0, False),
        (case("base", "lines", 128, 512), 0, False),
        (case("base", "grouped", 128, 512), 0, True),
        (case("large", "grouped", 64, 512), 0, False),
        (case("1b", "grouped", 64, 512, micro_batch=32), 2, False),
    ]


def name_of(case: Case, compiled: bool) -> str:
    """Returns the name of a case, by which `--cases` chooses it."""
    return f"{case.size}_{case.mode}{'_compiled' * compiled}"


def main() -> None:
    """Measures all cases, prints one line per case and writes the JSON."""
    parser = parser_of("gpu", __doc__)
    parser.add_argument("--cases", nargs="+", help="names of the cases to run, such as base_grouped; all by default")
    arguments = parser.parse_args()
    steps = (2, 1) if arguments.quick else (STEPS, WARM_UP)
    # Each side runs all its rounds in a process of its own, because loading the libraries takes longer than a round.
    with _process() as mine, _process() as theirs:
        rate = theirs.submit(_matrix_rate).result()
        found: dict[str, Any] = {"machine": machine(), "matrix_flops": rate, "targets": TARGETS, "cases": {}}
        for case, zero, compiled in cases(Options(arguments.quick, arguments.data, arguments.models)):
            name = name_of(case, compiled)
            if arguments.cases and name not in arguments.cases:
                continue
            compared = alternate(
                {
                    "ours": _in(mine, ours.train, case, quick_precision(), *steps, None, zero, compiled),
                    "peer": _in(theirs, peer.train, case, True, *steps),
                }
            )
            speed, ratio = compared.middle("ours", _rate), compared.ratio("ours", "peer", _rate)
            mfu = speed * theirs.submit(_flops, case).result() / rate
            found["cases"][name] = {
                **{side: list(runs) for side, runs in compared.found.items()},
                "ratio": ratio.middle,
                "rounds": ratio.rounds,
                "noisy_rounds": ratio.noisy,
                "mfu": mfu,
                "zero_stage": zero,
            }
            shown = f"{ratio.middle:.2f} ({ratio}), MFU {mfu:.1%}"
            print(f"{name}: {speed:,.0f} tokens/s, ratio {shown}", flush=True)
            if arguments.json:  # Written after each case, because a later case may run out of memory.
                arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def _in(process: ProcessPoolExecutor, train: Callable[..., dict[str, Any]], *arguments: Any) -> Callable[[], Any]:
    return lambda: process.submit(_alone, train, *arguments).result()


def _alone(train: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Runs a training run, and frees its memory on the GPU for the other process."""
    import gc

    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    measured = train(*arguments)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return measured


def _rate(run: dict[str, Any]) -> float:
    return float(run["tokens_per_s"])


def _matrix_rate() -> float:
    import torch

    from adapt.train.capacity.device import matmul_rate

    return matmul_rate("cuda" if torch.cuda.is_available() else "cpu", "bf16")


def _flops(case: Case) -> float:
    """Returns the floating-point operations per token of a forward and a backward pass."""
    from adapt.config import ObjectiveConfig
    from adapt.model.size import model_size
    from adapt.train.capacity.flops import training_flops, workload

    with tempfile.TemporaryDirectory() as folder:
        build_model(case).save_pretrained(folder)
        size = model_size(Path(folder))
    assert size
    ids = documents(case)
    mean = sum(map(len, ids)) / len(ids)
    return training_flops(size, workload(ObjectiveConfig(kind="causal" if case.causal else "mlm"), case.length, mean))


if __name__ == "__main__":
    main()
