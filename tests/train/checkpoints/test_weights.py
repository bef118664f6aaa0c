"""Tests averages of checkpoints: readable checkpoints, refused checkpoints, and the values of the average."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adapt.config import Config, MergeConfig, ModelConfig, StorageConfig, TrainingConfig
from adapt.config.job_sections import EvaluationConfig
from adapt.job.training_jobs import merge_stages
from adapt.merge.merger import decay_weights
from adapt.runner import Record, ensure
from adapt.runner.secret import VARIABLE, Secret, secret_of
from adapt.stage.context import Context
from adapt.support.errors import ModelError
from adapt.train.checkpoints.stored_checkpoints import (
    STATE_FILE,
    WEIGHTS_FILE,
    Sealing,
    checkpoint_files,
    checkpoint_weights,
    folder_name,
    is_checkpoint,
    sealed_run,
)
from tests.merge.folders import moved, weights_in
from tests.train.checkpoints.sealed import seal


def checkpoint(run: Path, step: int, weights: dict[str, torch.Tensor], stage: int = 0, **more: Any) -> Path:
    folder = run / folder_name(step)
    (folder / "state").mkdir(parents=True)
    torch.save({"module": weights, "optimizer": None, "param_shapes": [], **more}, folder / WEIGHTS_FILE)
    (folder / STATE_FILE).write_text(json.dumps({"zero_stage": stage}))
    seal(folder, sealing=Sealing(secret_of(run.parents[3]), sealed_run(run.parents[1], run.name)))
    return folder


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """Returns the folder of a finished training run, which contains no model."""
    return finish(tmp_path / "runs" / "train" / "dapt-0123", "plain")


def finish(folder: Path, method: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    what = {"method": {"kind": method}}
    Record("train", "dapt", "0" * 64, 1, what, {}, {}, {}, {}, {}, {}, "", folder).save()
    return folder


def test_checkpoints_are_averaged_by_the_configured_decay(tmp_path: Path, tiny_bert: Path, training: Path) -> None:
    """The average ignores additional entries of DeepSpeed's files: tied weights and values that are not weights."""
    base = weights_in(tiny_bert)
    window = [moved(base, step) for step in range(3)]
    for step, weights in enumerate(window):
        tied = {"cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"]}
        checkpoint(training / "checkpoints" / "01234567", 100 * (step + 1), weights | tied)
    config = Config(
        model=ModelConfig(path=str(tiny_bert)),
        merge=MergeConfig(kind="average", weights="sqrt", models=[f"{training}/checkpoints/*/step-*"]),
        training=TrainingConfig(sequence_length=64),
        evaluation=EvaluationConfig(sequence_length=64),
        storage=StorageConfig(root=str(tmp_path / "out")),
    )
    context = Context.of(config)
    stage = merge_stages(context)
    assert [model.pretrained.model.name for model in stage.models] == [folder_name(100 * n) for n in (1, 2, 3)]
    found = weights_in(ensure(stage, context.store).path)
    parts = decay_weights("sqrt", 3)
    assert found.keys() == base.keys()
    for name in base:
        expected = sum(part * weights[name].double() for part, weights in zip(parts, window, strict=True))
        torch.testing.assert_close(found[name].double(), expected, rtol=1e-5, atol=1e-6)
    other = replace(config, merge=replace(config.merge, kind="task_arithmetic", weights=None))
    with pytest.raises(ModelError, match="is a training checkpoint"):
        merge_stages(Context.of(other))


def test_unreadable_checkpoints_are_refused_by_name(tmp_path: Path, training: Path) -> None:
    run = training / "checkpoints" / "01234567"
    weights = {"w": torch.ones(2)}
    whole = checkpoint(run, 1, weights)
    assert is_checkpoint(whole)
    assert not is_checkpoint(tmp_path)
    assert len(checkpoint_files(whole)) == 2
    with pytest.raises(ModelError, match="divided over ranks"):
        checkpoint_files(checkpoint(run, 2, weights, stage=3))
    torn = checkpoint(run, 3, weights)
    (torn / STATE_FILE).write_text("{")
    with pytest.raises(ModelError, match="is incomplete"):
        checkpoint_files(torn)
    finish(training, "das")
    with pytest.raises(ModelError, match="of method das"):
        checkpoint_files(whole)
    finish(training, "l2sp")
    assert checkpoint_files(whole)
    (training / "stage.json").unlink()
    with pytest.raises(ModelError, match="belongs to no finished training run"):
        checkpoint_files(whole)


def test_a_checkpoint_that_the_training_run_did_not_write_is_refused(
    training: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = training / "checkpoints" / "01234567"
    own, other, copied = (checkpoint(run, step, {"w": torch.ones(2)}) for step in (1, 2, 3))
    with checkpoint_weights(own) as weights:
        assert weights.shapes == {"w": (2,)}
    seal(other, sealing=Sealing(Secret(b"the key of somebody else"), sealed_run(training, run.name)))
    with pytest.raises(ModelError, match="is not signed by this user's key"), checkpoint_weights(other):
        pass
    copied.rename(run / folder_name(4))
    with pytest.raises(ModelError, match="for this run and step"), checkpoint_weights(run / folder_name(4)):
        pass
    (own / "more.py").write_text("")
    with pytest.raises(ModelError, match=r"more\.py is not listed"), checkpoint_weights(own):
        pass
    (own / "more.py").unlink()
    monkeypatch.setenv(VARIABLE, "another key of this user")
    with pytest.raises(ModelError, match=f"with the same {VARIABLE}"), checkpoint_weights(own):
        pass


def test_a_file_that_would_run_code_is_refused(training: Path) -> None:
    """Loading a checkpoint creates no pickled objects other than numbers."""
    folder = checkpoint(training / "checkpoints" / "01234567", 1, {}, code=shutil.rmtree)
    with pytest.raises(ModelError, match="cannot be read"), checkpoint_weights(folder):
        pass
