"""Tests that a command for a finished search starts nothing, and reports that there is nothing to do."""

from dataclasses import asdict
from pathlib import Path

import pytest

from adapt.evaluate.measurements import Estimate
from adapt.runner import Record, Store
from adapt.stage.context import root_of
from adapt.tuning.search_run import search_of_command
from adapt.tuning.search_stage import Searched, TrialRow
from tests.jobs.commands import Run, last_line

SEARCHED = Searched(
    "finetune", {"dev_score": "max"}, [TrialRow(0, {}, "a", {"dev_score": Estimate(0.5)})], 0, [0], 1.5, 3, 0
)


def test_a_finished_search_says_so_and_starts_nothing(
    run: Run, task: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("finetune.yaml").write_text("finetune.dropout: [0.0, 0.1]")
    arguments = [*task, "--space=finetune.yaml", "--tune.fresh_seeds=[]"]
    search = search_of_command(arguments)
    folder = Store(root_of(search.config)).folder(search.kind, search.name, search.key)
    folder.mkdir(parents=True)
    Record(search.kind, search.name, search.key, 1, {}, {}, asdict(SEARCHED), {}, {}, {}, {}, "", folder).save()
    page = tmp_path / "runs" / "reports" / f"search-{search.name}" / "report.html"
    page.parent.mkdir(parents=True)
    page.write_text("")
    ran = run("tune.py", *arguments)
    assert ran.code == 0, ran.err
    told = {"trials": 1, "failed": 0, "best": 0, "device_hours": 1.5}
    assert last_line(ran) == {"stage": "tune", "path": str(folder), "metrics": told}
    assert {"ray", "torch", "transformers", "matplotlib", "mlflow", "optuna"} & ran.loaded == set()
