"""A training step asks a GPU for one number, at its end. Until then the host runs ahead of it."""

from typing import Any

import pytest
import torch

from tests.train.pretended import pretended
from tests.train.toy import Case, build, feed


def watched(case: Case) -> list[tuple[list[str], list[str]]]:
    """What each step of a case waited for, and what met in it."""
    loop = build(case)
    seen = []
    for number, share in enumerate(feed(0, case.steps)):
        model: Any = loop.engine.model
        held = [value for state in loop.engine._adamw.state.values() for value in state.values() if value.dim()]
        with pretended([*model.parameters(), *model.buffers(), *held]) as device:
            loop.step(share, number, 1e-3)
        seen.append((device.waits, device.met))
    return seen


@pytest.mark.parametrize("micro_batch", [8, 4, 1])
def test_a_step_waits_for_its_gradient_norm_alone(ranks: Any, micro_batch: int) -> None:
    for waits, met in ranks(1).run(watched, Case(steps=2, micro_batch=micro_batch))[0]:
        assert met == []
        assert waits == ["aten._local_scalar_dense.default"]


def test_what_would_wait_is_seen() -> None:
    there, here = torch.arange(3.0), torch.arange(3.0)
    with pretended([there]) as device:
        assert (there > 0).sum().item() == 2
        there[there > 0]
        (there + 1).tolist()
        there.view(3, 1).repeat_interleave(torch.tensor([1, 2, 0], device="cpu"), dim=0)
        here[here > 0].tolist()  # the host's own
    assert [each.removeprefix("aten.").split(".")[0] for each in device.waits] == [
        "_local_scalar_dense",
        "index",
        "tolist",
        "repeat_interleave",
    ]
    assert device.met == []


def test_what_does_not_belong_together_is_seen() -> None:
    there, here = torch.arange(3.0), torch.arange(3.0)
    with pretended([there]) as device:
        there + here
        there * torch.tensor(2.0)  # a number
        there + torch.ones(3, device="cpu")  # made there
        torch.stack([there * 2, there.clone()])
    assert device.met == ["aten.add.Tensor"]
