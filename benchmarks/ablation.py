"""What each technique of the training core is worth: its speed with all of them over its speed without that one."""

import statistics
from dataclasses import replace

from benchmarks import ours
from benchmarks.common import Options, Result, apart, main
from benchmarks.switches import TECHNIQUES
from benchmarks.texts import Case

TARGETS = {f"{mode}: {name}": (">=", 0.97) for mode in ("grouped", "lines") for name in TECHNIQUES}
"""None may cost more than noise."""
STEPS, WARM_UP = 3, 1


def measure(options: Options) -> Result:
    """The small model, both kinds of text; with `--quick` grouped text once."""
    rounds, modes = (1, ("grouped",)) if options.quick else (3, ("grouped", "lines"))
    result = Result({})
    for mode in modes:
        case = Case("small", mode, 32, 128, options.data, options.models)
        speeds: dict[str | None, list[float]] = {name: [] for name in (None, *TECHNIQUES)}
        for _ in range(rounds):
            for name, found in speeds.items():
                found.append(_speed(case, name))
        whole = statistics.median(speeds[None])
        result.details.append((f"{mode}: all", f"{whole:,.0f} tokens/s"))
        for name, what in TECHNIQUES.items():
            without = statistics.median(speeds[name])
            result.figures[f"{mode}: {name}"] = whole / without
            result.details.append((f"{mode}, {what}", f"{without:,.0f} tokens/s"))
    return result


def _speed(case: Case, off: str | None) -> float:
    precision = "fp32" if off == "bf16" else "bf16"
    padded = replace(case, padded=off == "packing")
    found = apart(ours.train, padded, precision, STEPS, WARM_UP, off)
    return float(found["tokens_per_s"])


if __name__ == "__main__":
    main("ablation", TARGETS, measure)
