"""Two chains with the same hyperparameter search run at the same time on one store."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import drive
from tests.drive import Jobs
from tests.samples import labelled, write

jobs = pytest.fixture(drive.jobs)


def chain(folder: Path, model: Path) -> Path:
    """Writes a chain: a search for the learning rate of fine-tuning, and a run with the best rate and a new seed."""
    splits = {
        split: str(write(folder / f"{split}.jsonl", labelled(16, len(split)))) for split in ("train", "dev", "test")
    }
    (folder / "space.yaml").write_text("finetune.learning_rate: {loguniform: [1.0e-4, 1.0e-2]}\n")
    space = str(folder / "space.yaml")
    content: dict[str, Any] = {
        "let": {"samples": 1},
        "common": {
            "model.path": str(model),
            "training.sequence_length": 64,
            "evaluation.sequence_length": 64,
            "finetune": {"epochs": 1, "seeds": [0]},
            "task": {"name": "one", **splits},
        },
        "stages": {
            "search": {
                "job": "finetune",
                "tune": {"space": space, "samples": "{samples}", "at_once": 2, "fresh_seeds": [8]},
            },
            "best": {"job": "finetune", "tuned": "search", "finetune.seeds": [7]},
        },
    }
    file = folder / "chain.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def records(root: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in root.glob(f"{kind}/*/stage.json")]


@pytest.mark.slow
def test_two_chains_at_once_share_trials_and_continue_with_the_best_values(
    jobs: Jobs, tiny_bert: Path, tmp_path: Path
) -> None:
    file = chain(tmp_path, tiny_bert)
    both = [jobs.start(tmp_path, ["run", str(file), "--samples", str(count)], "chain.py") for count in (1, 2)]
    assert [job.result()["metrics"] for job in both] == [{"finished": 3, "missing": 0}] * 2

    root = tmp_path / "runs"
    searches = {len(record["metrics"]["trials"]): record["metrics"] for record in records(root, "search")}
    assert searches.keys() == {2, 3}
    assert searches[2]["trials"] == searches[3]["trials"][:2]  # Both searches propose the same trials.
    trials = {row["key"] for found in searches.values() for row in found["trials"]}
    assert len(trials) == 3
    assert sum(job.err.count("trial: done") for job in both) == len(records(root, "trial"))  # Each trial ran once.
    best = [found["trials"][found["best"]]["values"] for found in searches.values()]
    tested = [record for record in records(root, "finetune") if record["metrics"]["seed"] == 7]
    assert len(tested) == len({json.dumps(values) for values in best})
    page = next(root.glob("reports/chain/report.html")).read_text()
    assert "Searches for good values" in page
    assert "search: with fresh seeds" in page

    again = jobs.start(tmp_path, ["run", str(file), "--samples", "2"], "chain.py")
    assert again.result()["metrics"] == {"finished": 3, "missing": 0}
    assert "All stages are finished." in again.err
    assert "starting Ray" not in again.err
