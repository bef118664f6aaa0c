"""Measures training on one GPU: speed relative to transformers' Trainer with its best settings, and FLOPs utilization.

Model FLOPs utilization (MFU) is relative to the rate of large matrix products measured on the device. `--quick` runs a
small case anywhere. `--cases base_grouped base_lines` runs only these cases.
"""

import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import ours, peer
from benchmarks.common import Options, Result, Targets, parser_of, quick_precision, report, save
from benchmarks.rounds import alternate
from benchmarks.texts import Case, build_model, documents

TARGETS: Targets = {
    "base_grouped": (">=", 1.6),
    "base_grouped_mfu": (">=", 0.5),
    "base_lines": (">=", 3.0),
}
"""Minimum ratios to the speed of the Trainer, and minimum utilization (`_mfu`). Other cases have no target."""
STEPS, WARM_UP = 20, 5


@dataclass(frozen=True)
class Comparison:
    """A training run that our loop and the Trainer are both measured on."""

    case: Case
    zero_stage: int = 0
    compiled: bool = False
    """Whether both sides use torch.compile."""
    peer_passes: int = 1
    """Number of forward passes per Trainer step. The Trainer's padded batches need more memory than our packed ones."""

    @property
    def name(self) -> str:
        """Name by which `--cases` chooses the comparison."""
        return f"{self.case.size}_{self.case.mode}{'_compiled' * self.compiled}"

    @property
    def peer_case(self) -> Case:
        """The model and text of `case`, with the micro-batch size that the Trainer uses."""
        case = self.case
        return case if self.peer_passes == 1 else replace(case, micro_batch=case.rows // self.peer_passes)


def comparisons(options: Options) -> list[Comparison]:
    """Returns the training runs to compare."""
    case = partial(Case, data=options.data, models=options.models)
    if options.quick:
        return [Comparison(case("small", mode, 4, 128)) for mode in ("grouped", "lines")]
    return [
        Comparison(case("base", "grouped", 128, 512)),
        Comparison(case("base", "lines", 128, 512), peer_passes=16),
        Comparison(case("base", "grouped", 128, 512), compiled=True),
        Comparison(case("large", "grouped", 64, 512)),
        Comparison(case("1b", "grouped", 64, 512, micro_batch=32), zero_stage=2),
    ]


def main() -> None:
    """Measures the comparisons, prints a line for each, and then the table."""
    parser = parser_of("gpu", __doc__)
    parser.add_argument("--cases", nargs="+", help="names of the cases to run, such as base_grouped; all by default")
    arguments = parser.parse_args()
    runs = comparisons(Options(arguments.quick, arguments.data, arguments.models))
    names = [each.name for each in runs]
    if unknown := sorted({*(arguments.cases or ())} - {*names}):
        parser.error(f"--cases: no case {', '.join(unknown)}; there are {', '.join(names)}")
    steps = (2, 1) if arguments.quick else (STEPS, WARM_UP)
    result = Result({})
    # Our loop and the Trainer each have a process for all rounds, because loading libraries takes longer than a round.
    with _process() as mine, _process() as theirs:
        rate = theirs.submit(_matrix_rate).result()
        for each in runs:
            if arguments.cases and each.name not in arguments.cases:
                continue
            compared = alternate(
                {
                    "ours": _in(
                        mine, ours.train, each.case, quick_precision(), *steps, None, each.zero_stage, each.compiled
                    ),
                    "peer": _in(theirs, peer.train, each.peer_case, True, *steps, False, "random", each.compiled),
                }
            )
            speed, ratio = compared.middle("ours", _rate), compared.ratio("ours", "peer", _rate)
            mfu = speed * theirs.submit(_flops, each.case).result() / rate
            result.compare(each.name, ratio)
            result.figures[f"{each.name}_mfu"] = mfu
            for side in ("ours", "peer"):
                value = compared.middle(side, _rate), compared.middle(side, lambda run: run["peak_bytes"] / 1e9)
                result.details.append((f"{each.name}, {side}", f"{value[0]:,.0f} tokens/s, {value[1]:.1f} GB"))
            print(f"{each.name}: {speed:,.0f} tokens/s, ratio {ratio.middle:.2f} ({ratio}), MFU {mfu:.1%}", flush=True)
            if arguments.json:  # Written after each case, because a later case may run out of memory.
                save("gpu", TARGETS, result, arguments.json)
    report("gpu", TARGETS, result, arguments.json)


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def _in(process: ProcessPoolExecutor, train: Callable[..., dict[str, Any]], *arguments: Any) -> Callable[[], Any]:
    return lambda: process.submit(_alone, train, *arguments).result()


def _alone(train: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Trains in this process, and then frees the GPU memory for the process of the other side."""
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

    return matmul_rate("cuda" if torch.cuda.is_available() else "cpu", quick_precision())


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
