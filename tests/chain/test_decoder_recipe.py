"""Tests recipe `decoder_benchmarks`: decoders trained with three seeds, compared with the base model on local tasks."""

import json
from pathlib import Path

import pytest

from tests import drive
from tests.drive import Jobs
from tests.evaluate.benchmark.tiny_tasks import task_folder, tiny_decoder
from tests.samples import sentences, write

jobs = pytest.fixture(drive.jobs)


@pytest.mark.slow
def test_trained_decoders_are_compared_on_tasks_of_the_harness(jobs: Jobs, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    corpus = tmp_path / "corpus.jsonl"
    write(corpus, [{"text": text} for text in sentences(300, seed=1, shortest=12, longest=40)])
    tasks = task_folder(tmp_path / "tasks")
    job = jobs.start(
        tmp_path,
        [
            *("run", "decoder_benchmarks", f"--corpus={corpus}", f"--model={tiny_decoder(tmp_path / 'model', 1024)}"),
            *("--steps=2", "--corpus.heldout_fraction=0.1", "--resources.workers=1"),
            *("--harness.tasks=[choice]", f"--harness.include_path={tasks}"),
        ],
        "chain.py",
    )
    assert job.result()["metrics"] == {"finished": 4, "missing": 0}
    record = json.loads(next(job.root.glob("compare/*/stage.json")).read_text())
    benchmarks = record["metrics"]["benchmarks"]
    assert benchmarks["models"] == ["base", "dapt"]
    assert benchmarks["seeds"] == {"base": 1, "dapt": 3}
    assert "choice" in next(job.root.glob("reports/decoder-benchmarks/report.md")).read_text()
