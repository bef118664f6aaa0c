"""Measures training on one GPU: speed relative to transformers' Trainer with its best settings, and FLOPs utilization.

Needs only torch and transformers (and accelerate for the Trainer); uses DeepSpeed if installed. Model FLOPs utilization
(MFU) is relative to the rate of large matrix products measured on the device. `--quick` runs a small case anywhere.
"""

import importlib.util
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import ours, peer
from benchmarks.common import Options, apart, machine, parser_of
from benchmarks.rounds import alternate
from benchmarks.texts import Case, build_model, documents

TARGETS = {"grouped_base": 1.6, "lines_base": 3.0, "mfu_base": 0.5}
STEPS, WARM_UP = 20, 5


def cases(options: Options) -> list[tuple[Case, int]]:
    """Returns the cases to measure, each with its ZeRO stage."""
    case = partial(Case, data=options.data, models=options.models)
    if options.quick:
        return [(case("small", "grouped", 4, 128), 0), (case("small", "lines", 4, 128), 0)]
    zero = 2 if importlib.util.find_spec("deepspeed") else 0
    return [
        (case("base", "grouped", 128, 512), 0),
        (case("base", "lines", 128, 512), 0),
        (case("large", "grouped", 64, 512), 0),
        (case("1b", "grouped", 64, 512, micro_batch=32), zero),
    ]


def main() -> None:
    """Measures all cases, prints one line per case and writes the JSON."""
    arguments = parser_of("gpu", __doc__).parse_args()
    rate = apart(_matrix_rate)
    found: dict[str, Any] = {"machine": machine(), "matrix_flops": rate, "targets": TARGETS, "cases": {}}
    for case, zero in cases(Options(arguments.quick, arguments.data, arguments.models)):
        name = f"{case.mode}_{case.size}"
        steps = (2, 1) if arguments.quick else (STEPS, WARM_UP)
        compared = alternate(
            {
                "ours": partial(apart, ours.train, case, "bf16", *steps, None, zero),
                "peer": partial(_peer, case, *steps),
            }
        )
        speed = compared.middle("ours", _rate)
        mfu = speed * apart(_flops, case) / rate
        both = {side: list(runs) for side, runs in compared.found.items()}
        ratio = compared.ratio("ours", "peer", _rate) if "tokens_per_s" in both["peer"][0] else None
        rounds = (
            {"ratio": ratio.middle, "rounds": ratio.rounds, "noisy_rounds": ratio.noisy} if ratio else {"ratio": None}
        )
        found["cases"][name] = {**both, **rounds, "mfu": mfu, "zero_stage": zero}
        shown = f"{ratio.middle:.2f} ({ratio})" if ratio else None
        print(f"{name}: {speed:,.0f} tokens/s, ratio {shown}, MFU {mfu:.1%}", flush=True)
        if arguments.json:  # Written after each case, because a later case may run out of memory.
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def _rate(run: dict[str, Any]) -> float:
    return float(run["tokens_per_s"])


def _peer(case: Case, steps: int, warm_up: int) -> dict[str, Any]:
    if not importlib.util.find_spec("accelerate"):
        return {"missing": "accelerate"}
    return apart(peer.train, case, True, steps, warm_up)


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
