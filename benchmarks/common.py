"""Functions that all benchmarks use: they read options, describe the machine, print the table and write the JSON."""

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.rounds import Ratio

ROOT = Path(__file__).resolve().parent.parent
MATRIX_FEATURES = (
    *("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_bf16", "amx_int8"),
    *("asimd", "sve", "sve2", "sme", "bf16", "i8mm"),  # Arm
)
"""CPU features that determine the speed of matrix products, by their names in Linux's /proc/cpuinfo."""
Targets = dict[str, tuple[str, float]]
T = TypeVar("T")


@dataclass
class Result:
    """The result of a benchmark: its measured figures, and further rows for the printed table."""

    figures: dict[str, float]
    details: list[tuple[str, str]] = field(default_factory=list)
    """Further rows of the printed table: a label and a value."""
    ratios: dict[str, Ratio] = field(default_factory=dict)
    """Ratios per round of each figure that compares two alternatives, such as our code and another library."""

    def compare(self, figure: str, ratio: Ratio) -> None:
        """Adds a figure that compares two alternatives. Its value is the median over rounds of their ratio."""
        self.figures[figure] = ratio.middle
        self.ratios[figure] = ratio


@dataclass(frozen=True)
class Options:
    """Options on a benchmark's command line."""

    quick: bool
    data: Path | None
    models: Path | None


def quick_precision() -> Any:
    """Returns the precision that `training.precision: auto` chooses here: bf16 if it is faster than fp32, else fp32."""
    import torch

    from adapt.train.model_options import resolve

    return resolve("auto", torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def parser_of(name: str, about: str | None, needs_folders: bool = False) -> argparse.ArgumentParser:
    """Makes the parser of the arguments that every benchmark accepts, even if the benchmark does not use them.

    Args:
        name: name of the benchmark's module.
        about: description of what the benchmark measures.
        needs_folders: whether the benchmark needs the folders with text and models.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("--quick", action="store_true", help="less of all: a check, at most 3 minutes on 2 cores")
    parser.add_argument("--json", type=Path, help="file for the figures")
    made = "" if needs_folders else "; where text is needed and this is not given, it is made here"
    parser.add_argument("--data", type=Path, required=needs_folders, help=f"folder with tasks/ and corpora/{made}")
    made = "" if needs_folders else "; where one is needed and this is not given, it has random weights"
    parser.add_argument("--models", type=Path, required=needs_folders, help=f"folder with base models{made}")
    return parser


def main(name: str, targets: Targets, measure: Callable[[Options], Result]) -> None:
    """Runs a benchmark, prints its table, and writes its JSON if the user gave `--json`."""
    arguments = parser_of(name, sys.modules["__main__"].__doc__).parse_args()
    result = measure(Options(arguments.quick, arguments.data, arguments.models))
    report(name, targets, result, arguments.json)


def report(name: str, targets: Targets, result: Result, file: Path | None) -> None:
    """Prints the table of a result, and writes the JSON if a file is given."""
    _show(name, targets, result)
    if file:
        save(name, targets, result, file)


def save(name: str, targets: Targets, result: Result, file: Path) -> None:
    """Writes the JSON of a result."""
    values = {"name": name, "machine": machine(), "figures": result.figures, "targets": targets}
    rounds = {name: {"rounds": each.rounds, "noisy_rounds": each.noisy} for name, each in result.ratios.items()}
    file.write_text(json.dumps({**values, "rounds": rounds, "details": result.details}, indent=1) + "\n")


def _show(name: str, targets: Targets, result: Result) -> None:
    """Prints the table of a result."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{name} on {machine()['cpu']}, {machine()['cores']} cores", title_justify="left")
    for column in ("figure", "value", "least to greatest", "target"):
        table.add_column(column)
    for figure, measured in result.figures.items():
        verdict = _verdict(measured, *targets[figure]) if figure in targets else ""
        ratio = result.ratios.get(figure)
        noisy = " [yellow]noisy[/]" if ratio and ratio.noisy else ""
        table.add_row(figure, f"{measured:.4g}{noisy}", str(ratio or ""), verdict)
    for what, value in result.details:
        table.add_row(f"[dim]{what}[/]", f"[dim]{value}[/]", "", "")
    Console().print(table)


def _verdict(measured: float, sign: str, bound: float) -> str:
    met = measured >= bound if sign == ">=" else measured <= bound
    return f"{sign} {bound:g}: {'met' if met else '[red]missed[/]'}"


def machine() -> dict[str, Any]:
    """Returns a description of the machine: processor, cores, memory, GPU and versions."""
    import torch

    known = processor(Path("/proc/cpuinfo").read_text())
    return {
        "cpu": known.get("model name") or platform.processor(),
        "matrix_features": known["matrix"].split(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def processor(described: str) -> dict[str, str]:
    """Reads the first core's description from /proc/cpuinfo. `matrix` lists the features for matrix products."""
    lines = (line.partition(":") for line in described.partition("\n\n")[0].splitlines())
    known = {name.strip(): value.strip() for name, _, value in lines}
    features = known.get("flags", known.get("Features", "")).split()
    return {**known, "matrix": " ".join(name for name in MATRIX_FEATURES if name in features)}


def corpus_file(folder: Path, documents: int) -> Path:
    """Writes a jsonl file of English text that needs no download. The text is Python's language reference, repeated."""
    from pydoc_data.topics import topics

    paragraphs = [" ".join(part.split()) for text in topics.values() for part in text.split("\n\n") if len(part) > 80]
    path = folder / "corpus.jsonl"
    with path.open("w") as file:
        for number in range(documents):
            file.write(json.dumps({"text": f"{number}. {paragraphs[number % len(paragraphs)]}"}) + "\n")
    return path


def job(
    arguments: list[str], kind: str = "dapt", environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Starts a script of jobs/ as a process."""
    command = [sys.executable, str(ROOT / "jobs" / f"{kind}.py"), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Waits for the end of a job and parses the last line of its stdout."""
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the job failed with exit code {process.returncode}: {process.args!r}")
    return dict(json.loads(output.splitlines()[-1]))


def steps_done(root: Path, stage: str = "train") -> int:
    """Returns the number of steps that a job has reported so far while it trains."""
    lines = [line for file in root.glob(f"{stage}/*/metrics.jsonl") for line in file.read_text().splitlines()]
    return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], timeout_s: float = 300) -> None:
    """Waits until a condition on a running job is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the job ended, or took over {timeout_s} s, before it came to the point waited for")
        time.sleep(0.02)


def peak_bytes() -> int:
    """Returns the peak memory of this process: GPU memory if there is a GPU, otherwise RAM."""
    import resource

    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """Runs a function in a new process and returns its result, so that measurements do not affect each other."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result: T = pool.apply(function, arguments)
        pool.close()  # closes and joins the pool, because a terminated pool may print a message
        pool.join()
    return result


@contextmanager
def workplace() -> Iterator[Path]:
    """Makes a temporary folder, and removes it after the block."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        yield Path(folder)
