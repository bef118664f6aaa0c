"""The published forms that `benchmarks.das_deviations` compares with, against what is known of them."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cosine_similarity

from adapt.method.das import contrast, soft_mask
from adapt.method.das.views import Disagreement
from adapt.model.layers.units import KINDS, Gates, by_parameter, ones
from adapt.objective.base import Batch
from benchmarks.published import EqualNetworks, Unmasked, columns_of_heads, never_zeroed, other_texts
from tests.method.das.test_measure import LENGTH, batch, measured, objective
from tests.model.families import ready


def full() -> Batch:
    return replace(batch(), lengths=torch.full((5,), LENGTH))


def test_equal_networks_have_the_gradient_of_rounding_alone() -> None:
    model = ready("bert")
    noise, views = measured(model, EqualNetworks(), [full()]), measured(model, Disagreement(), [full()], dropout_seed=0)
    assert EqualNetworks().loss(model, EqualNetworks().corrupt(full())).abs() < 1e-4
    for kind in KINDS:
        assert noise.units[kind].sum() > 0
        assert noise.units[kind].max() < 1e-4 * views.units[kind].max()


def test_unmasked_rows_are_judged_at_the_same_positions() -> None:
    judged = objective("bert")
    ours, theirs = judged.corrupt(batch()), Unmasked(judged).corrupt(batch())
    assert torch.equal(ours.positions, theirs.positions)
    assert torch.equal(theirs.input_ids, batch().tokens)
    assert torch.equal(theirs.targets, theirs.input_ids[theirs.positions])
    assert not torch.equal(ours.input_ids, theirs.input_ids)


def test_what_is_never_zeroed_grows_with_the_number_of_batches() -> None:
    """After n equal batches of gradient g the mean of |k g| over k is (n + 1) / 2 |g|."""
    model, judged = ready("bert"), objective("bert")
    once = measured(model, judged, [batch()]).units
    found = never_zeroed(model, Gates(model), judged, [(number, batch()) for number in range(4)])
    for kind in KINDS:
        torch.testing.assert_close(found[kind].double(), 2.5 * once[kind], rtol=1e-4, atol=1e-9)


def test_columns_of_heads_take_the_place_of_their_rows() -> None:
    model = ready("bert")
    values = {kind: torch.rand(each.shape) for kind, each in ones(model).items()}
    ours = by_parameter(model, values)
    with columns_of_heads():
        theirs = vars(soft_mask)["by_parameter"](model, values)
    other = {name for name in ours if not torch.equal(ours[name], theirs[name])}
    heads = {f"attention.self.{part}.weight" for part in ("query", "key", "value")}
    assert {name.split(".", 4)[-1] for name in other} == heads
    assert all(torch.equal(ours[name].T, theirs[name]) for name in other)
    assert vars(soft_mask)["by_parameter"] is by_parameter


@pytest.mark.parametrize("documents", [3, 4])
def test_other_texts_are_neighbours_of_rows_repeated_whole(documents: int) -> None:
    torch.manual_seed(0)
    first, second = torch.randn(2, documents, 8)
    rows = [*first, *second]
    pairs = [(rows[2 * n], rows[2 * n + 1]) for n in range(documents)]
    expected = []
    for own, positive in pairs:
        scores = torch.stack([cosine_similarity(own, other, dim=0) for _, other in pairs]) / 0.05
        expected.append(scores.logsumexp(0) - cosine_similarity(own, positive, dim=0) / 0.05)
    with other_texts():
        found = contrast.info_nce(first, second, None, 0.05, documents)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-4)
