"""Tests that the results of a task remain valid after the task is renamed, and that reports use the new name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_stages import Chain, build_chain, study
from adapt.runner import Record, Stage
from adapt.runner.record import plain_values
from adapt.show.report.study import Study, lineage
from adapt.show.report.study_results import collect
from tests.runner.made import made_up
from tests.samples import labelled, write


def chain_of(folder: Path, model: Path, task: str) -> Chain:
    """Returns a chain with one stage, which fine-tunes on a task with one seed."""
    splits = {split: str(folder / f"{split}.jsonl") for split in ("train", "dev", "test")}
    content = {
        "name": "one",
        "common": {
            "model.path": str(model),
            "storage.root": str(folder / "runs"),
            "training.sequence_length": 64,
            "evaluation.sequence_length": 64,
        },
        "stages": {"tuned": {"job": "finetune", "task": {"name": task, **splits}, "finetune.seeds": [0]}},
    }
    file = folder / "chain.yaml"
    file.write_text(yaml.safe_dump(content))
    return build_chain(expand_chain(read_chain(str(file))))


def finish(stage: Stage[Any], chain: Chain) -> Record:
    """Writes records of a stage and its inputs without running them. Returns the stage's record."""
    inputs = {name: finish(needed, chain) for name, needed in stage.inputs.items()}
    folder = chain.store.folder(stage.kind, stage.name, stage.key)
    folder.mkdir(parents=True, exist_ok=True)
    places = {name: {"stage": one.stage, "key": one.key, "path": str(one.path)} for name, one in inputs.items()}
    figures = {"seed": 0, "score": 0.7, "metric": "macro_f1"} if inputs else {}
    metrics = plain_values(made_up(stage.result_type(), **figures))
    record = Record(
        stage.kind, stage.name, stage.key, stage.version, {}, places, metrics, {}, {}, {}, {}, "2026-11-21", folder
    )
    record.save()
    return record


@pytest.fixture
def renamed(tmp_path: Path, tiny_bert: Path) -> Study:
    """Returns the study of a chain whose task was renamed after its stage had finished."""
    for split in ("train", "dev", "test"):
        write(tmp_path / f"{split}.jsonl", labelled(4, len(split)))
    before = chain_of(tmp_path, tiny_bert, "acl_arc")
    finish(before.goals[0].stage, before)
    return study("one", "base", chain_of(tmp_path, tiny_bert, "citations"))


def test_a_renamed_task_has_its_new_name_in_the_report(renamed: Study) -> None:
    assert renamed.missing == []  # the task's name is not part of the key
    assert [(row.name, row.task) for row in collect(renamed).rows] == [("citations", "citations")]


def test_a_renamed_stage_has_its_new_name_in_the_lineage(renamed: Study) -> None:
    assert [(node.kind, node.label) for node in lineage(renamed)] == [("task", "citations"), ("finetune", "tuned")]
