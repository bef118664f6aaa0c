"""Tests the command lines of benchmarks. Every benchmark accepts the same arguments, even if it ignores some."""

import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from adapt.train.held_time import HELD_FILE
from benchmarks import rounds as rounds_module
from benchmarks.common import Options, Result, processor, report
from benchmarks.goodput import Schedule, State
from benchmarks.rounds import Load, Ratio, Rounds, Watch, alternate
from scripts import benchmark_table

ROOT = Path(__file__).parents[1]
TOOLS = {
    *(
        "claims",
        "equality",
        "advice_check",
        "few_labels",
        "objectives_study",
        "replay_study",
        "rtd_study",
        "selection_study",
        "sentence_pairs",
        "sentence_study",
        "sequences",
        "sequential",
        "slices",
        "small_corpus_study",
        "small_decoder",
        "small_electra",
    ),
    *("study_table", "vocabulary_study"),
}
"""Programs in benchmarks/ that measure nothing: they make inputs of chains, or tables of finished chains."""
PROGRAMS = {file.stem for file in (ROOT / "benchmarks").glob("*.py") if "__main__" in file.read_text().splitlines()[-2]}
BENCHMARKS = sorted(PROGRAMS - TOOLS)
SHARED = "--quick", "--json", "results.json", "--data", "folder", "--models", "folder"


def run(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs a benchmark with arguments that end it while they are parsed, and returns its exit code."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    # runpy warns if the module is already loaded.
    monkeypatch.delitem(sys.modules, f"benchmarks.{name}", raising=False)
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
def test_figures_name_the_matrix_instructions_of_the_processor(described: str, matrix: str) -> None:
    assert processor(described)["matrix"] == matrix


def test_sides_alternate_and_the_ratio_is_computed_per_round() -> None:
    order: list[str] = []
    values = {"ours": iter([2.0, 8.0, 3.0]), "peer": iter([1.0, 2.0, 3.0]), "other": iter([1.0, 1.0, 1.0])}

    def side(name: str) -> float:
        order.append(name)
        return next(values[name])

    found = alternate({name: partial(side, name) for name in values})
    assert order == ["ours", "peer", "other", "peer", "other", "ours", "other", "ours", "peer"]
    ratio = found.ratio("ours", "peer", float)
    assert ratio.rounds == (2.0, 4.0, 1.0)
    assert ratio.middle == 2.0
    assert str(ratio).startswith("1 to 4 in 3 rounds")
    with pytest.raises(ValueError, match="a comparison takes 3 rounds at least, not 2"):
        alternate({"ours": float}, 2)


@pytest.mark.parametrize(
    ("waiting", "others", "is_noisy"),
    [(0.5, 0.5, True), (0.5, 0.01, False), (0.01, 0.5, False), (None, 0.5, True), (None, 0.01, False)],
)
def test_a_measurement_is_noisy_if_it_waits_for_cores_that_others_use(
    waiting: float | None, others: float, is_noisy: bool
) -> None:
    load, quiet = Load(waiting, others), Load(0.0, 0.0)
    assert load.is_noisy == is_noisy
    found = Rounds({"a": [1.0] * 3, "b": [1.0] * 3}, {"a": [quiet] * 3, "b": [quiet, load, quiet]})
    assert found.ratio("a", "b", float).noisy == is_noisy
    assert ("noisy in 1" in str(found.ratio("a", "b", float))) == is_noisy
    assert Ratio.of([(1.0, 2.0)] * 3, load).noisy == 3 * is_noisy


def test_work_of_the_benchmark_is_not_counted_as_work_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks 4 s on 4 cores in which all processes use 8 CPU seconds, 6 of them in the benchmark.

    The share of other processes is therefore 2 s / (4 s x 4 cores).
    """
    for name, before, after in (("_busy_s", 100, 108), ("_waiting_s", 10, 11), ("_reaped_s", 50, 56), ("_now_s", 0, 4)):
        monkeypatch.setattr(rounds_module, name, iter([float(before), float(after)]).__next__)
    monkeypatch.setattr(rounds_module.os, "cpu_count", lambda: 4)
    assert Watch().stop() == Load(waiting=0.25, others=(8.0 - 6.0) / (4 * 4.0))


def test_the_watch_counts_work_of_child_processes() -> None:
    watch = Watch()
    subprocess.run([sys.executable, "-c", "sum(range(30_000_000))"], check=True)
    load = watch.stop()
    assert 0 <= load.others <= 1.05
    assert load.waiting is None or 0 <= load.waiting <= 1


def test_table_and_file_show_the_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = Result({"other": 1.0})
    result.compare("ratio", Ratio((1.5, 2.5, 2.0), noisy=2))
    report("toy", {"ratio": (">=", 1.0), "other": (">=", 1.0)}, result, tmp_path / "found.json")
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 noisy" in shown
    assert "1.5 to 2.5" in shown
    rounds = json.loads((tmp_path / "found.json").read_text())["rounds"]
    assert rounds == {"ratio": {"rounds": [1.5, 2.5, 2.0], "noisy_rounds": 2}}


@pytest.mark.parametrize("name", ["ablation", "finetune", "train_throughput"])
def test_the_quick_form_measures_fewer_rounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module(f"benchmarks.{name}")
    measurements = 0

    def apart(function: Any, *_: Any) -> Any:
        nonlocal measurements
        measurements += 1
        return defaultdict(lambda: [1.0] * 3 if function.__name__ == "seeds" else 1.0)

    monkeypatch.setattr(module, "apart", apart)
    counts, figures = [], []
    for quick in (True, False):
        measurements = 0
        figures.append(set(module.measure(Options(quick, None, None)).figures))
        counts.append(measurements)
    assert figures[0] <= figures[1] == set(module.TARGETS)
    assert counts[0] < counts[1]  # With and without --quick, a comparison takes at least three rounds.


def test_another_family_is_compared_with_the_trainers_best_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both modes are measured on the same cases of the family. Here, dontstop is 3 times as fast as the Trainer."""
    module: Any = importlib.import_module("benchmarks.train_throughput")
    measured: set[tuple[str, str, str]] = set()

    def apart(function: Any, *arguments: Any) -> Any:
        if function == module.quick_precision:
            return "fp32"
        who = "ours" if function == module.ours.train else "peer"
        measured.add((who, arguments[0].family, arguments[0].mode))
        return dict.fromkeys(("tokens_per_s", "tokens_per_cpu_s"), 30.0 if who == "ours" else 10.0)

    monkeypatch.setattr(module, "apart", apart)
    file = tmp_path / "found.json"
    arguments = ["train_throughput", "--quick", "--family", "deberta-v2", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", arguments)
    module.main()
    assert measured == {(who, "deberta-v2", mode) for who in ("ours", "peer") for mode in ("grouped", "lines")}
    assert json.loads(file.read_text())["figures"] == dict.fromkeys(module.FAMILY_TARGETS, 3.0)


# --- the page with the figures of benchmarks


HISTORY = json.loads((ROOT / "benchmarks" / "history.json").read_text("utf-8"))


def test_the_page_shows_the_latest_figures_of_the_history() -> None:
    page = benchmark_table.PAGE.read_text("utf-8")
    assert benchmark_table.page_with(page, HISTORY) == page, "run scripts/benchmark_table.py"
    described = re.findall(r"^\| ?([A-Z]) ?\|", page, re.MULTILINE)
    assert described == [*HISTORY["machines"]] == sorted({run["machine"] for run in HISTORY["runs"]})


def test_benchmarks_that_the_page_and_the_history_name_exist() -> None:
    page = benchmark_table.PAGE.read_text("utf-8")
    named = {claim["benchmark"] for claim in HISTORY["claims"]} | {run["benchmark"] for run in HISTORY["runs"]}
    named |= set(re.findall(r"benchmarks[./](\w+)[` ]", page)) - {"NAME"}
    assert [name for name in sorted(named) if not list((ROOT / "benchmarks").glob(f"{name}.*"))] == []


@pytest.mark.parametrize("name", sorted({claim["benchmark"] for claim in HISTORY["claims"]}))
def test_targets_of_the_history_are_those_of_the_benchmarks(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    targets = {**module.TARGETS, **getattr(module, "ELASTIC_TARGETS", {}), **getattr(module, "FAMILY_TARGETS", {})}
    for claim in HISTORY["claims"]:
        if claim["benchmark"] == name:
            sign, bound = targets[claim["figure"]]
            assert claim["target"] == f"{sign} {bound:g}"
            assert benchmark_table.last_figures(HISTORY, name, claim["figure"])


def test_the_output_of_a_benchmark_is_added_to_the_history() -> None:
    written = {"name": "tokenize", "figures": {"bpe": 4.5}, "rounds": {"bpe": {"rounds": [4.5], "noisy_rounds": 1}}}
    run = benchmark_table.entry(written, "E", "python -m benchmarks.tokenize --quick")
    history = {"runs": [*HISTORY["runs"], run]}
    assert benchmark_table.last_figures(history, "tokenize", "bpe")["E"] == (4.5, "°†")


def test_failures_come_at_random_times_that_the_seed_determines() -> None:
    """The mean time between failures is near the configured mean, and a quarter of the failures kill the driver."""
    failures = [*Schedule(120.0, 120.0 * 4000, 3).failures()]
    assert failures == [*Schedule(120.0, 120.0 * 4000, 3).failures()] != [*Schedule(120.0, 120.0 * 4000, 4).failures()]
    assert 0.95 < len(failures) / 4000 < 1.05
    assert 0.22 < sum(is_driver for _, is_driver, _ in failures) / len(failures) < 0.28
    assert {rank for *_, rank in failures} == {0, 1}


def test_parts_of_a_run_end_at_failures_where_there_are_any() -> None:
    schedule = Schedule(600.0, 6000.0, 3)
    ends, failures = [0.0], {at for at, *_ in schedule.failures()}
    while ends[-1] < schedule.length_s:
        ends.append(schedule.end_of_part(ends[-1], 1500.0))
    assert ends[-1] == schedule.length_s
    for begin, end in pairwise(ends):
        assert 0 < end - begin <= 1500
        assert end in failures or end == schedule.length_s or not {at for at in failures if begin + 750 < at <= end}
    assert schedule.end_of_part(0.0, schedule.length_s) == schedule.length_s


def test_a_part_that_was_interrupted_counts_until_its_last_sign(tmp_path: Path) -> None:
    schedule, held = Schedule(600.0, 6000.0, 3), tmp_path / "runs" / "train" / "a-1" / HELD_FILE
    held.parent.mkdir(parents=True)
    held.touch()
    os.utime(held, (1100.0, 1100.0))
    State(asdict(schedule), done_s=300.0, since=1000.0, killed={"worker": 2}).save(tmp_path)
    state = State.load(tmp_path, schedule)
    assert (state.done_s, state.since, sum(state.killed.values())) == (400.0, None, 3)
    with pytest.raises(SystemExit, match="name another folder"):
        State.load(tmp_path, Schedule(120.0, 6000.0, 3))
