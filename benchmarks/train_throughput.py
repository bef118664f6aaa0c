"""Measures training speed relative to transformers' Trainer with run_mlm's two modes, in tokens without padding.

`grouped`: long texts cut into blocks. `lines`: short texts one by one, which the Trainer pads to the longest text of a
batch. `base` has RoBERTa-base's size, `small` has 6 layers of 384. We compare with the Trainer's best settings at the
same precision (bf16 autocast where it is faster, fused AdamW, scaled dot product attention). `..._vs_defaults` compares
with the Trainer's fp32 defaults, which equal its best settings where bf16 is slower. Each measurement runs in its own
process, and both sides alternate.

`--family NAME` measures the small size of another encoder, such as deberta-v2, whose documents are padded rows. The
Trainer's blocks attend across documents. `..._per_cpu_s` compares tokens per second of CPU time, which other load on
the machine hardly changes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import ours, peer
from benchmarks.common import Options, Result, apart, parser_of, quick_precision, report
from benchmarks.rounds import alternate
from benchmarks.texts import Case

TARGETS = {
    "grouped_base": (">=", 1.6),
    "grouped_small": (">=", 2.8),
    "lines_base": (">=", 3.5),
    "lines_small": (">=", 7.0),
    "grouped_base_vs_defaults": (">=", 2.2),
    "grouped_small_vs_defaults": (">=", 3.0),
    "lines_base_vs_defaults": (">=", 2.2),
    "lines_small_vs_defaults": (">=", 3.0),
}
FAMILY_TARGETS = {
    "padded_grouped": (">=", 1.0),
    "padded_lines": (">=", 1.0),
    "padded_grouped_per_cpu_s": (">=", 1.0),
    "padded_lines_per_cpu_s": (">=", 1.0),
}
ROWS = {"base": 8, "small": 32}
QUICK_ROWS = {"small": 16}
LENGTH = 128
WARM_UP = 1


def measure(options: Options) -> Result:
    """Measures all cases. With `--quick`, measures only the small model, on half of the rows, in fewer rounds."""
    result = Result({})
    for mode in ("grouped", "lines"):
        for size, rows in (QUICK_ROWS if options.quick else ROWS).items():
            case = Case(size, mode, rows, LENGTH, options.data, options.models)
            _compare(case, 2 if options.quick else 5, result)
            if mode == "lines" and not options.quick:
                _by_length(case, 10, result)
    return result


def measure_family(options: Options, family: str) -> Result:
    """Measures the small size of another family against the Trainer's best settings."""
    result, rows = Result({}), (QUICK_ROWS if options.quick else ROWS)["small"]
    for mode in ("grouped", "lines"):
        case = Case("small", mode, rows, LENGTH, options.data, options.models, family=family)
        precision, steps = apart(quick_precision), 2 if options.quick else 5
        found = alternate(
            {
                "best": partial(apart, peer.train, case, True, steps, WARM_UP),
                "ours": partial(apart, ours.train, case, precision, steps, WARM_UP),
            }
        )
        result.compare(f"padded_{mode}", found.ratio("ours", "best", _rate))
        result.compare(f"padded_{mode}_per_cpu_s", found.ratio("ours", "best", _rate_of_cpu))
        for who, label in (("ours", "ours"), ("best", "Trainer, best settings")):
            rates = found.middle(who, _rate), found.middle(who, _rate_of_cpu)
            shown = f"{rates[0]:,.0f} tokens/s, {rates[1]:,.0f} tokens per CPU second"
            result.details.append((f"{family}, {mode}: {label}", shown))
    return result


def _compare(case: Case, steps: int, result: Result) -> None:
    name = f"{case.mode}_{case.size}"
    precision = apart(quick_precision)
    sides: dict[str, Callable[[], dict[str, Any]]] = {
        "best": lambda: apart(peer.train, case, True, steps, WARM_UP),
        "ours": lambda: apart(ours.train, case, precision, steps, WARM_UP),
        "defaults": lambda: apart(peer.train, case, False, max(1, steps - 1), WARM_UP),
    }
    if precision != "bf16":
        del sides["defaults"]  # The Trainer's defaults equal its best settings.
    found = alternate(sides)
    defaults = "defaults" if "defaults" in sides else "best"
    for figure, other in ((name, "best"), (f"{name}_vs_defaults", defaults)):
        result.compare(figure, found.ratio("ours", other, _rate))
    for who, label in (("ours", "ours"), ("best", "Trainer, best settings"), (defaults, "Trainer, defaults")):
        peak = max(each["peak_bytes"] for each in found.found[who]) / 2**30
        rate = found.middle(who, _rate)
        result.details.append((f"{name}: {label}", f"{rate:,.0f} tokens/s, peak {peak:.2f} GiB"))


def _rate(found: dict[str, Any]) -> float:
    return float(found["tokens_per_s"])


def _rate_of_cpu(found: dict[str, Any]) -> float:
    return float(found["tokens_per_cpu_s"])


def _by_length(case: Case, steps: int, result: Result) -> None:
    """Measures the Trainer on lines grouped by length. run_mlm does not use this option, but users can choose it."""
    rate = apart(peer.train, case, True, steps, WARM_UP, True)["tokens_per_s"]
    label = f"{case.mode}_{case.size}: Trainer, best settings, lines grouped by length"
    result.details.append((label, f"{rate:,.0f} tokens/s"))


def main() -> None:
    """Measures all cases, or the cases of one family. Prints the table and writes the JSON."""
    parser = parser_of("train_throughput", __doc__)
    parser.add_argument("--family", help="model_type of an encoder that transformers knows, such as deberta-v2")
    given = parser.parse_args()
    options = Options(given.quick, given.data, given.models)
    targets, result = (
        (FAMILY_TARGETS, measure_family(options, given.family)) if given.family else (TARGETS, measure(options))
    )
    report("train_throughput", targets, result, given.json)


if __name__ == "__main__":
    main()
