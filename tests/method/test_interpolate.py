"""Compares the interpolation of weights after training on a domain with numpy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapt.method.base import Setting
from adapt.method.interpolate import Interpolated, InterpolateOptions
from adapt.support.errors import ModelError
from tests.method.trained import BEFORE, START, loaded
from tests.train import toy


def merged(state: dict[str, Any], **options: Any) -> dict[str, Any]:
    method = Interpolated(InterpolateOptions(**options))
    method.prepare_model(toy.model(), Setting(anchor=START, base=BEFORE, load=loaded))
    return method.merge(state)


def trained() -> dict[str, Any]:
    return {name: each + 1 for name, each in toy.model().state_dict().items()}


@pytest.mark.parametrize(("towards", "folder"), [("before", START), ("base", BEFORE)])
def test_weights_are_interpolated(towards: str, folder: Path) -> None:
    other, state = loaded(folder).state_dict(), trained()
    for name, found in merged(state, share=0.3, towards=towards).items():
        if not found.is_floating_point():
            assert torch.equal(found, state[name])
            continue
        expected = 0.7 * other[name].double().numpy() + 0.3 * state[name].double().numpy()
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_shares_0_and_1_give_the_two_models() -> None:
    state, start = trained(), toy.model().state_dict()
    assert merged(state, share=1.0) is state
    assert all(torch.equal(each, start[name]) for name, each in merged(state, share=0.0).items())


def test_a_base_of_another_vocabulary_is_refused() -> None:
    """Checks that `prepare_model` raises the error, so that a user sees the error before training."""
    method, larger = Interpolated(InterpolateOptions(towards="base")), toy.model()
    larger.cls.predictions.bias = torch.nn.Parameter(torch.zeros(99))
    with pytest.raises(ModelError, match=r"has no cls.predictions.bias of the trained model's shape \[99\]"):
        method.prepare_model(larger, Setting(anchor=START, base=BEFORE, load=loaded))


def test_merge_returns_nothing_on_ranks_without_weights() -> None:
    assert merged({}) == {}
