"""Trials that run out of memory take smaller passes, one size after another, until these fit. Nothing here trains."""

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import OutOfMemoryError

from adapt.config import Config, MethodConfig, ResourcesConfig, TrainingConfig
from adapt.errors import DeviceMemoryError
from adapt.method.das.gradients import gradients_on_cluster, measure_settings
from adapt.method.das.options import DasOptions
from adapt.method.das.stage import Measuring
from adapt.model.locate import Pretrained
from adapt.tuning.fitting import with_fewer


@pytest.mark.parametrize(("sequences", "fewer"), [(16, 8), (5, 2), (2, 1)])
def test_fine_tuning_takes_half_the_examples(sequences: int, fewer: int) -> None:
    error = DeviceMemoryError("it ran out", "take fewer", sequences, field="finetune.micro_batch")
    assert with_fewer(Config(), pickle.loads(pickle.dumps(error))) == {"finetune.micro_batch": fewer}


def test_a_training_takes_the_next_divisor_of_its_share() -> None:
    config = Config(training=TrainingConfig(global_batch_size=24), resources=ResourcesConfig(workers=2))
    error = DeviceMemoryError("it ran out", "take fewer", 12)
    assert with_fewer(config, error) == {"training.micro_batch": 6}


class Fits(Exception):
    """In place of a result, which cannot be had here."""


def on_machines_with_room_for(rows: int, patch: pytest.MonkeyPatch) -> None:
    """Ray's memory monitor kills whoever takes more rows at once."""

    def remote(task: Any, function: partial[Any], *_: Any) -> Any:
        if measure_settings(function.args[0], "fp32").rows > rows:
            raise OutOfMemoryError("Task was killed due to the node running low on memory.")
        raise Fits

    patch.setattr("ray.remote", lambda **_: lambda task: SimpleNamespace(remote=partial(remote, task)))
    patch.setattr("ray.get", lambda made: made)
    patch.setattr("ray.cluster_resources", dict)


@pytest.mark.parametrize(("about", "tried"), [("domain", [64, 48, 32, 24, 16, 12]), ("general", [64, 48, 32, 24])])
def test_workers_killed_while_auto_measures_importance_take_fewer_until_they_fit(
    about: Any, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` takes 64 sequences of 64 tokens; general importance has two views of each."""
    training = TrainingConfig(global_batch_size=96, sequence_length=64, micro_batch="auto")
    config = Config(training=training, method=MethodConfig("das"), method_options=DasOptions())
    on_machines_with_room_for(12, monkeypatch)
    seen: list[int] = []
    while True:
        measuring = Measuring(config, DasOptions(), Pretrained(Path(), Path()), (), None, about)
        try:
            gradients_on_cluster(measuring, np.arange(100))
        except DeviceMemoryError as error:
            seen.append(error.micro_batch)
            (fewer,) = with_fewer(config, error).values()
            config = replace(config, training=replace(training, micro_batch=fewer))
        except Fits:
            break
    assert [*seen, config.training.micro_batch] == tried
