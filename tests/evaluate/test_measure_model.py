"""Tests that a model is loaded on a device, and that evaluation documents that it was trained on are found."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapt.config import Config, EvaluationConfig, ObjectiveConfig, ResourcesConfig
from adapt.corpus.token_shards import write_shard
from adapt.evaluate import evaluation_task
from adapt.evaluate.evaluation_task import measure_corpora, ready
from adapt.evaluate.measure_model import Measurement, overlaps, trained_on
from adapt.model.locate import Pretrained
from adapt.runner import Record
from tests.corpus.test_heldout import shards


@pytest.mark.parametrize(("shared_by", "threads"), [(1, 8), (2, 4), (16, 1)])
def test_a_model_computes_on_its_share_of_the_cores(
    shared_by: int, threads: int, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_task, "hide_unreserved_gpus", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)})
    before = torch.get_num_threads()
    try:
        loaded = ready(Pretrained(tiny_bert, tiny_bert), False, shared_by)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert loaded.device.type == "cpu"
    assert loaded.model.config.vocab_size == len(loaded.tokenizer)


def test_an_evaluation_shares_the_cores_with_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def noted(shared_by: int) -> None:
        asked.append(shared_by)
        raise InterruptedError

    monkeypatch.setattr(evaluation_task, "hide_unreserved_gpus", lambda: None)  # the replaced function would start Ray
    monkeypatch.setattr(evaluation_task, "use_threads", noted)
    config = Config(resources=ResourcesConfig(trainings_per_machine=3))
    with pytest.raises(InterruptedError):
        measure_corpora(Measurement(config, Pretrained(Path(), Path()), {}, {}))
    assert asked == [3]


TEXTS = [f"text {number}" for number in range(12)]


def record(folder: Path, stage: str, what: dict[str, Any] | None = None, **inputs: Record) -> Record:
    folder.mkdir(exist_ok=True)
    needed = {name: {"stage": each.stage, "key": each.key, "path": str(each.path)} for name, each in inputs.items()}
    made = Record(stage, folder.name, folder.name, 1, what or {}, needed, {}, {}, {}, {}, {}, "", folder)
    made.save()
    return made


@pytest.fixture
def lineage(tmp_path: Path) -> dict[str, Record]:
    """Returns records of two consecutive training runs, and of an export and a fine-tuning run of the second model.

    The first training run read texts 2 and 3 in capitals. The second run read texts 4 to 7, and general texts 8 and 9.
    """
    first, second, replay = (
        record(shards(tmp_path / name, texts, TEXTS[:1]), "prepare")
        for name, texts in (
            ("first", [text.upper() for text in TEXTS[2:4]]),
            ("second", TEXTS[4:8]),
            ("replay", TEXTS[8:10]),
        )
    )
    before = record(tmp_path / "before", "train", **{"corpora.cs": first})
    measured = record(shards(tmp_path / "left out", TEXTS[10:], []), "prepare")
    read = {"corpora.domain": second, "replay": replay, "streamed.measured.0": measured}
    training = record(tmp_path / "training", "train", **read, **{"start.training": before})
    export = record(tmp_path / "e", "export", training=training, domain=measured)
    finetune = record(tmp_path / "f", "finetune", **{"start.training": training})
    return {"training": training, "before": before, "export": export, "finetune": finetune}


@pytest.mark.parametrize(("model", "expected"), [("training", 3), ("export", 3), ("finetune", 3), ("before", 1)])
def test_texts_of_all_earlier_trainings_are_found(
    lineage: dict[str, Record], tmp_path: Path, model: str, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    corpora = {
        "domain": shards(tmp_path / "measured", TEXTS[4:], [TEXTS[0], TEXTS[3], "Text  7", TEXTS[9], TEXTS[11]]),
        "general": shards(tmp_path / "general", [], TEXTS[10:]),
    }
    assert overlaps(corpora, trained_on(lineage[model])) == {"domain": expected, "general": 0}
    said = f"warning: {expected} of the held-out documents of domain are also in the model's training text"
    assert said in capsys.readouterr().err


def test_unknown_training_texts_are_reported_as_unknown(lineage: dict[str, Record], tmp_path: Path) -> None:
    corpora = {"domain": shards(tmp_path / "measured", [], TEXTS)}
    assert overlaps(corpora, trained_on(None)) == {"domain": None}
    (lineage["before"].path / "stage.json").unlink()
    assert trained_on(lineage["training"]) is None
    streamed = record(tmp_path / "streamed", "prepare", {"streaming": True})
    assert trained_on(record(tmp_path / "on", "train", **{"corpora.domain": streamed})) is None


@pytest.mark.parametrize("kind", ["mlm", "whole_word"])
@pytest.mark.parametrize("trained_with", [0.15, 0.4])
def test_a_measured_loss_does_not_depend_on_how_the_model_was_trained(
    kind: str, trained_with: float, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation masks single tokens at the rate `evaluation.mask_fraction`, whatever the training run masked.

    So all training runs of an encoder can be compared.
    """
    monkeypatch.setattr(evaluation_task, "hide_unreserved_gpus", lambda: None)
    lengths = [12, 42, 22]
    texts = [[2, *np.random.default_rng(n).integers(5, 154, n - 2).tolist(), 3] for n in lengths]
    write_shard(tmp_path / "heldout-000000-000000.arrow", texts, 154)

    def measured(objective: ObjectiveConfig, fraction: float) -> tuple[list[float], list[int]]:
        evaluation = EvaluationConfig(sequence_length=64, mask_fraction=fraction, examples=0)
        config = Config(objective=objective, evaluation=evaluation)
        measurement = Measurement(config, Pretrained(tiny_bert, tiny_bert), {"domain": str(tmp_path)}, {})
        found = measure_corpora(measurement)[0]["domain"]
        return found["losses"], found["counts"]

    plain = measured(ObjectiveConfig(), 0.15)
    assert measured(ObjectiveConfig(kind=kind, mask_fraction=trained_with), 0.15) == plain
    assert sorted(plain[1]) == [round(0.15 * (n - 2)) for n in (12, 22, 42)]
    assert sorted(measured(ObjectiveConfig(), 0.3)[1]) == [3, 6, 12]
