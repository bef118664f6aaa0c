"""Measures how much each technique of the training core, such as packing, speeds up training.

Each figure is the training speed with all techniques, divided by the speed with one technique switched off.
"""

from dataclasses import replace
from functools import partial

from benchmarks import ours
from benchmarks.common import Options, Result, apart, main
from benchmarks.rounds import alternate
from benchmarks.switches import TECHNIQUES
from benchmarks.texts import Case

TARGETS = {f"{mode}: {name}": (">=", 0.97) for mode in ("grouped", "lines") for name in TECHNIQUES}
"""Minimum ratio for each technique. A technique must not make training slower, except for noise of up to 3%."""
STEPS, WARM_UP = 3, 1


def measure(options: Options) -> Result:
    """Measures the small model on long texts and on short lines. With `--quick`, only long texts are measured."""
    modes = ("grouped",) if options.quick else ("grouped", "lines")
    result = Result({})
    for mode in modes:
        case = Case("small", mode, 32, 128, options.data, options.models)
        sides = {name or "all": partial(_speed, case, name) for name in (None, *TECHNIQUES)}
        found = alternate(sides)
        result.details.append((f"{mode}: all", f"{found.middle('all', float):,.0f} tokens/s"))
        for name, what in TECHNIQUES.items():
            result.compare(f"{mode}: {name}", found.ratio("all", name, float))
            result.details.append((f"{mode}, {what}", f"{found.middle(name, float):,.0f} tokens/s"))
    return result


def _speed(case: Case, off: str | None) -> float:
    precision = "fp32" if off == "bf16" else "bf16"
    padded = replace(case, padded=off == "packing")
    found = apart(ours.train, padded, precision, STEPS, WARM_UP, off)
    return float(found["tokens_per_s"])


if __name__ == "__main__":
    main("ablation", TARGETS, measure)
