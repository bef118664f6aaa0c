"""A model that is made ready to be measured in a task."""

import os
from pathlib import Path

import pytest
import torch

from adapt.config import Config, ResourcesConfig
from adapt.evaluate import measure
from adapt.evaluate import ready as ready_module
from adapt.evaluate.ready import ready
from adapt.model.locate import Pretrained


@pytest.mark.parametrize(("shared_by", "threads"), [(1, 8), (2, 4), (16, 1)])
def test_it_computes_on_its_share_of_the_cores(
    shared_by: int, threads: int, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_module, "hide_unreserved_gpus", lambda: None)
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

    def noted(pretrained: Pretrained, causal: bool, shared_by: int) -> None:
        asked.append(shared_by)
        raise InterruptedError

    monkeypatch.setattr(measure, "ready", noted)
    config = Config(resources=ResourcesConfig(trainings_per_machine=3))
    with pytest.raises(InterruptedError):
        measure._measure(measure.Measurement(config, Pretrained(Path(), Path()), {}, {}))
    assert asked == [3]
