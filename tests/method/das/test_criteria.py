"""Criteria of pruning, against sums over what each unit owns, written out for one architecture after another."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adapt.config import Config, MethodConfig
from adapt.errors import ConfigError
from adapt.method.das.criteria import magnitudes, over_units, weight_sizes
from adapt.method.das.measure import MeasureSettings
from adapt.method.das.method import Das
from adapt.method.das.options import DasOptions
from adapt.model.layers.units import KINDS, Kind, by_parameter, unit_counts
from adapt.objective.base import Batch
from tests.method.das.test_measure import batch, objective, single_rows, summed_loss
from tests.model.families import FAMILIES, ready

ZERO = MeasureSettings()


def one_by_one(model: Any, values: dict[str, Tensor]) -> dict[Kind, Tensor]:
    """Each unit by itself: what it owns is where a value of 1 for it alone comes to."""
    counts = unit_counts(model)
    found = {kind: torch.zeros(2, size) for kind, size in counts.items()}
    for kind, size in counts.items():
        for layer in range(2):
            for unit in range(size):
                alone = {each: torch.zeros(2, number) for each, number in counts.items()}
                alone[kind][layer, unit] = 1
                spread = by_parameter(model, alone)
                found[kind][layer, unit] = sum(float((values[name] * each).sum()) for name, each in spread.items())
    return found


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "llama"])
def test_what_units_own_is_summed(family: str) -> None:
    """Llama's heads share keys and values: see below."""
    model = ready(family)
    values = {name: torch.randn_like(each) for name, each in model.named_parameters()}
    expected = one_by_one(model, values)
    for kind, found in over_units(model, values).items():
        torch.testing.assert_close(found, expected[kind], rtol=1e-3, atol=1e-4)


def test_what_heads_share_is_divided() -> None:
    model = ready("llama")
    values = {name: torch.ones_like(each) for name, each in model.named_parameters()}
    found = over_units(model, values)["head"].sum()
    owned = ("q_proj", "k_proj", "v_proj", "o_proj")
    assert found == sum(each.numel() for name, each in values.items() if any(part in name for part in owned))


def gradients(model: Any, rows: Batch, loss: Any) -> dict[str, Tensor]:
    model.zero_grad()
    total, count = summed_loss(model, loss, rows)
    (total / count).backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def by_hand(model: Any, loss: Any, groups: list[Batch], criterion: str) -> dict[Kind, Tensor]:
    weights = {name: each.detach() for name, each in model.named_parameters()}
    sums = {kind: torch.zeros(2, size) for kind, size in unit_counts(model).items()}
    for rows in groups:
        own = gradients(model, rows, loss)
        values = {name: weights[name] * each if criterion == "taylor" else each.square() for name, each in own.items()}
        for kind, found in one_by_one(model, values).items():
            sums[kind] += {"taylor": found.abs(), "gradient": found.sqrt(), "fisher": found}[criterion]
    return {kind: each / len(groups) for kind, each in sums.items()}


@pytest.mark.parametrize("criterion", ["gradient", "fisher", "taylor"])
@pytest.mark.parametrize("granularity", ["batch", "example"])
def test_is_the_mean_over_groups(criterion: str, granularity: Any) -> None:
    """Also where a group takes several passes."""
    batches, loss = [batch(0), batch(1, rows=3)], objective("bert")
    groups = batches if granularity == "batch" else [row for rows in batches for row in single_rows(rows)]
    settings = replace(ZERO, granularity=granularity, rows=2, embeddings="frequency")
    model = ready("bert")
    sums = weight_sizes(model, loss, enumerate(batches), settings, criterion)
    expected = by_hand(ready("bert"), loss, groups, criterion)
    assert (sums.groups, sums.text) == (len(groups), sum(int(each.lengths.sum()) for each in batches))
    for kind in KINDS:
        torch.testing.assert_close(sums.means[kind].float(), expected[kind], rtol=1e-3, atol=1e-5)
    assert sums.tokens is not None
    assert sums.tokens.sum() == sums.text
    assert all(each.requires_grad and each.grad is None for each in model.parameters())


def test_the_magnitude_is_the_norm_of_what_a_unit_owns() -> None:
    model = ready("bert")
    squares = {name: each.detach().square() for name, each in model.named_parameters()}
    for kind, found in one_by_one(model, squares).items():
        torch.testing.assert_close(magnitudes(model)[kind], found.sqrt(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("importance", "embeddings"), [("fisher", "gradient"), ("magnitude", "frequency")])
def test_embeddings_that_a_criterion_cannot_measure_are_refused(
    tiny_bert: Path, importance: Any, embeddings: Any
) -> None:
    config = Config(method=MethodConfig("das"))
    with pytest.raises(ConfigError, match=f"das.embeddings is {embeddings}, which das.importance {importance}"):
        Das(DasOptions(importance=importance, embeddings=embeddings)).check(config, tiny_bert)
    Das(DasOptions(importance="taylor", embeddings="frequency")).check(config, tiny_bert)
