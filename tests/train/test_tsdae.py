"""Tests training with objective `tsdae` in the engine: at all ZeRO stages, on two ranks, and after a resume."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from adapt.config import ObjectiveConfig
from adapt.method.base import Method
from adapt.objective.masking import make
from adapt.objective.table import TsdaeOptions
from adapt.objective.tsdae import CROSS
from adapt.train.engine import Engine
from adapt.train.loop import Loop
from tests.train.toy import GLOBAL_BATCH, Tokenizer, columns, model, rate, settings

STEPS = 3


class FirstTokenizer(Tokenizer):
    """A tokenizer that also has a token for the beginning of texts."""

    cls_token_id = 2


def trained(stages: list[int], folder: Path | None = None) -> list[dict[str, torch.Tensor]]:
    """Trains for some steps at each ZeRO stage, on the calling rank, and returns the exported weights.

    With a folder, a first run ends after one step, and a second run resumes from its checkpoint.
    """
    return [_trained(stage, folder) for stage in stages]


def _trained(stage: int, folder: Path | None) -> dict[str, torch.Tensor]:
    first, loop = 0, _loop(stage)
    if folder:
        _step(loop, 0)
        loop.engine.save(folder, {"step": 1})
        loop = _loop(stage)
        first = loop.engine.load(folder)["step"]
    for step in range(first, STEPS):
        _step(loop, step)
    exported: dict[str, torch.Tensor] = loop.objective.exported(loop.engine.full_state())
    return exported


def _loop(stage: int) -> Loop:
    toy: Any = model()
    objective: Any = make(ObjectiveConfig("tsdae"), FirstTokenizer(), 1, TsdaeOptions(pooling="mean"))  # type: ignore[arg-type]
    objective.prepare(toy)
    passes = GLOBAL_BATCH // dist.get_world_size() // 2
    training = settings()
    return Loop(Engine(toy, training, stage, "fp32", 2, passes), objective, Method(), training, 2, STEPS, seed=5)


def _step(loop: Loop, step: int) -> None:
    batch = columns(step, dist.get_rank(), dist.get_world_size())
    words = np.random.default_rng(step).random((GLOBAL_BATCH, batch["tokens"].shape[1])) < 0.7
    share = np.array_split(words, dist.get_world_size())[dist.get_rank()]
    loop.step({**batch, "word_starts": share}, step, rate(step))


def test_ranks_stages_and_resuming_change_nothing(ranks: Any, tmp_path: Path) -> None:
    ((expected,),) = ranks(1).run(trained, [0])
    start = model().state_dict()
    assert not any(CROSS in name for name in expected)
    assert expected.keys() == start.keys()
    assert not torch.equal(
        expected["bert.encoder.layer.0.output.dense.weight"], start["bert.encoder.layer.0.output.dense.weight"]
    )
    found = ranks(2).run(trained, [0, 2, 3])[0]
    (resumed,) = ranks(2).run(trained, [2], tmp_path)[0]
    for weights in (*found, resumed):
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=3e-5)
