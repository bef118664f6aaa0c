"""Sizes of gradients become importance in [0, 1], layer by layer."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import percentileofscore, zscore
from torch import Tensor

from adapt.method.das.normalize import (
    accumulate,
    normalize,
    normalize_tokens,
    plasticity,
    random_sizes,
    with_floor,
)
from adapt.model.layers.units import KINDS, Kind, Values
from tests.model.families import ready

UNITS = {"head": 4, "inner": 37, "output": 16}
HOWS: Any = ["paper", "positive", "rank"]


def sizes(seed: int = 0, scale: float = 1.0) -> dict[Kind, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {kind: scale * torch.rand(3, UNITS[kind], generator=draw).square() for kind in KINDS}


def every(values: Values) -> Tensor:
    return torch.cat([each.flatten() for each in values.values()])


@pytest.mark.parametrize(("how", "of"), [("paper", np.abs), ("positive", lambda each: np.maximum(each, 0))])
def test_by_deviations_from_the_mean(how: Any, of: Any) -> None:
    given, found = sizes(), normalize(sizes(), how)
    for kind in KINDS:
        expected = of(np.tanh(zscore(given[kind].double().numpy(), axis=1)))
        np.testing.assert_allclose(found[kind].numpy(), expected, rtol=1e-5, atol=1e-7)


def test_by_rank() -> None:
    tied = {kind: (each * 8).round() for kind, each in sizes().items()}
    found = normalize(tied, "rank")
    for kind in KINDS:
        for layer, row in zip(found[kind], tied[kind].numpy(), strict=True):
            ranks = [percentileofscore(row, each, "mean") / 100 * len(row) - 0.5 for each in row]  # mean rank from 0
            np.testing.assert_allclose(layer.numpy(), np.array(ranks) / (len(row) - 1), atol=1e-6)


@pytest.mark.parametrize("how", HOWS)
@given(st.integers(0, 1000), st.floats(1e-12, 1e12))
def test_is_in_0_to_1_and_does_not_depend_on_the_scale(how: Any, seed: int, scale: float) -> None:
    found = normalize(sizes(seed, scale), how)
    assert every(found).min() >= 0
    assert every(found).max() <= 1
    torch.testing.assert_close(found, normalize(sizes(seed), how), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.1, 1e6])
def test_layers_without_differences(value: float) -> None:
    """Where all units are alike, none is more important, and rounding must not be blown up."""
    equal = {kind: torch.full((3, UNITS[kind]), value) for kind in KINDS}
    noisy = {kind: each * (1 + 1e-7 * torch.randn(each.shape)) for kind, each in equal.items()}
    for how in ("paper", "positive"):
        assert not every(normalize(equal, how)).any()
        assert not every(normalize(noisy, how)).any()
    assert torch.equal(every(normalize(equal, "rank")), torch.full((171,), 0.5))


def test_a_layer_of_one_unit() -> None:
    single = {kind: torch.ones(2, 1) for kind in KINDS}
    for how in HOWS:
        assert not every(normalize(single, how)).any()


def test_what_the_published_formula_does_to_units_far_below_the_mean() -> None:
    """It protects them; `positive` and `rank` do not."""
    given = {kind: torch.tensor([[0.0, *[10.0 + each / 10 for each in range(9)]]]) for kind in KINDS}
    lowest = {how: normalize(given, how)["inner"][0, 0].item() for how in HOWS}
    assert lowest["paper"] > 0.95
    assert lowest["positive"] == lowest["rank"] == 0


def test_tokens_by_the_mean_of_those_that_came() -> None:
    counts = torch.tensor([0.0, 1.0, 5.0, 0.0, 3.0])
    np.testing.assert_allclose(normalize_tokens(counts), np.tanh(counts.numpy() / 3), rtol=1e-6)
    assert not normalize_tokens(torch.zeros(4)).any()


def test_random_sizes_are_of_the_seed() -> None:
    model = ready("bert")
    assert torch.equal(every(random_sizes(model, 3)), every(random_sizes(model, 3)))
    assert not torch.equal(every(random_sizes(model, 3)), every(random_sizes(model, 4)))
    assert {kind: tuple(each.shape) for kind, each in random_sizes(model, -1).items()} == {
        "head": (2, 2),
        "inner": (2, 32),
        "output": (2, 16),
    }


def test_the_larger_importance_counts() -> None:
    first, second = normalize(sizes(0), "paper"), normalize(sizes(1), "paper")
    for kind in KINDS:
        expected = np.maximum(first[kind].numpy(), second[kind].numpy())
        np.testing.assert_array_equal(accumulate(first, second)[kind].numpy(), expected)


def test_plasticity_is_what_is_left() -> None:
    importance = normalize(sizes(), "paper")
    for kind in KINDS:
        expected = [1 - float(np.mean(layer.numpy())) for layer in importance[kind]]
        assert plasticity(importance)[kind] == pytest.approx(expected, abs=1e-6)


def test_saturation() -> None:
    """With |tanh(z)| and the maximum, .44 is left after one importance, .20 after 3, .09 after 7 (METHODS, 2)."""
    draw = torch.Generator().manual_seed(0)
    together = None
    left = []
    for _ in range(7):
        normal = {kind: torch.randn(1, 20_000, generator=draw) for kind in KINDS}
        new = normalize(normal, "paper")
        together = accumulate(together, new) if together else new
        left.append(plasticity(together)["inner"][0])
    assert [left[0], left[2], left[6]] == pytest.approx([0.44, 0.20, 0.09], abs=0.02)


@pytest.mark.parametrize("floor", [0.0, 0.3, 0.6, 0.99])
def test_the_floor_holds_in_each_layer_and_scales_alike(floor: float) -> None:
    importance = normalize(sizes(), "paper")
    found = with_floor(importance, floor)
    for kind in KINDS:
        for layer, before in zip(found[kind], importance[kind], strict=True):
            assert 1 - layer.mean() >= floor - 1e-6
            factor = layer / before
            torch.testing.assert_close(factor, factor.mean().expand_as(factor), atol=1e-5, rtol=1e-4)
            if 1 - before.mean() >= floor:
                assert torch.equal(layer, before)
    nothing = {kind: torch.zeros(2, UNITS[kind]) for kind in KINDS}
    assert not every(with_floor(nothing, floor)).any()
