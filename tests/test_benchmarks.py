"""The benchmarks' command lines: all take the same arguments, whether they have a use for them or not."""

import importlib
import runpy
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import Options, processor

ROOT = Path(__file__).parents[1]
TOOLS = {
    *("claims", "equality", "selection_study", "sequences", "slices", "small_decoder", "versus", "vocabulary_study")
}
"""They make inputs of chains, or tables of finished ones, and measure nothing."""
PROGRAMS = {file.stem for file in (ROOT / "benchmarks").glob("*.py") if "__main__" in file.read_text().splitlines()[-2]}
BENCHMARKS = sorted(PROGRAMS - TOOLS)
SHARED = "--quick", "--json", "results.json", "--data", "folder", "--models", "folder"


def run(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of a benchmark that ends at its arguments."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.delitem(sys.modules, f"benchmarks.{name}", raising=False)  # else runpy warns
    with pytest.raises(SystemExit) as caught:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    return int(caught.value.code or 0)


def test_every_program_is_a_benchmark_or_a_tool() -> None:
    assert TOOLS < PROGRAMS
    assert {"das_cost", "finetune", "gpu", "startup", "train_throughput"} < set(BENCHMARKS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_help_names_what_is_measured_and_the_arguments(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, ["--help"], monkeypatch) == 0
    words = capsys.readouterr().out
    assert f"python -m benchmarks.{name}" in words
    assert all(argument in words for argument in ("--quick", "--json", "--data", "--models"))
    about = (ROOT / "benchmarks" / f"{name}.py").read_text()[3:].split()[:6]
    assert " ".join(about) in " ".join(words.split())


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_shared_arguments_are_taken(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, [*SHARED, "--nonsense"], monkeypatch) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("error: unrecognized arguments: --nonsense")


INTEL = "processor\t: 0\nmodel name\t: Xeon\nflags\t\t: fpu avx2 amx_bf16 bf16x\n\nprocessor\t: 1\nflags\t\t: sve\n"
ARM = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd bf16 i8mm\n"


@pytest.mark.parametrize(("described", "matrix"), [(INTEL, "avx2 amx_bf16"), (ARM, "asimd bf16 i8mm"), ("", "")])
def test_figures_name_what_the_processor_multiplies_matrices_with(described: str, matrix: str) -> None:
    assert processor(described)["matrix"] == matrix


@pytest.mark.parametrize("name", ["ablation", "finetune", "train_throughput"])
def test_the_quick_form_measures_less_of_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module(f"benchmarks.{name}")
    measurements = 0

    def apart(*_: Any) -> dict[str, float]:
        nonlocal measurements
        measurements += 1
        return defaultdict(lambda: 1.0)

    monkeypatch.setattr(module, "apart", apart)
    counts, figures = [], []
    for quick in (True, False):
        measurements = 0
        figures.append(set(module.measure(Options(quick, None, None)).figures))
        counts.append(measurements)
    assert figures[0] <= figures[1] == set(module.TARGETS)
    assert 3 * counts[0] < counts[1]
