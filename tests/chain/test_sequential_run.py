"""Runs a small sequential study on Ray, from its chain file to its report."""

from pathlib import Path

import pytest
import yaml

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_run import ChainRun
from adapt.chain.chain_stages import ahead
from tests.samples import labelled, write

pytestmark = pytest.mark.heavy


def test_a_study_adds_seeds_until_its_last_look(tmp_path: Path, tiny_bert: Path, ray_cluster: None) -> None:
    """Two recipes that hardly differ stay undecided, so both recipes run with all seeds.

    A second run has nothing to do.
    """
    for split, (count, seed) in {"train": (60, 1), "dev": (20, 2), "test": (30, 3)}.items():
        write(tmp_path / f"{split}.jsonl", labelled(count, seed))
    content = {
        "name": "small",
        "study": "sequential",
        "sequential": {"first_seeds": 2, "round_seeds": 1, "max_seeds": 3},
        "report": {"margin": {"points": 0.1}},
        "common": {"model.path": str(tiny_bert), "storage.root": str(tmp_path / "runs")},
        "sets": {"recipe": {"base": {"rate": 1e-3}, "slow": {"rate": 9e-4}}},
        "stages": {
            "finetune": {
                "job": "finetune",
                "for": "recipe",
                "task": {
                    "name": "topics",
                    **{split: str(tmp_path / f"{split}.jsonl") for split in ("train", "dev", "test")},
                },
                "finetune": {"epochs": 1, "learning_rate": "{recipe.rate}"},
            }
        },
    }
    file = tmp_path / "chain.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    run = ChainRun(read_chain(str(file)))
    report = run.run()
    assert report.study.looks is not None
    assert [looked.look for looked in report.study.looks] == [1, 2]
    assert len([entry for entry in report.study.entries if entry.record.stage == "finetune"]) == 6
    assert not report.study.missing
    assert not ahead(run.build())
    assert "Verdicts of the sequential study" in report.path.read_text("utf-8")
