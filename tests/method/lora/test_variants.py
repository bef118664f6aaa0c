"""Compares condition numbers and intruder directions with numpy, on weights with known singular values."""

import numpy as np
import pytest
import torch
from torch import Tensor

from adapt.method.lora.variants import best_conditioned, with_fewer_intruders


def rotation(size: int, seed: int) -> Tensor:
    found, _ = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(seed)))
    return found


def weight(sizes: list[float], seed: int) -> Tensor:
    """Returns a random square weight with the given singular values."""
    return rotation(len(sizes), seed) @ torch.diag(torch.tensor(sizes)) @ rotation(len(sizes), seed + 100)


def test_weights_with_the_lowest_condition_numbers_are_chosen_in_order() -> None:
    largest = {"a": 9.0, "b": 2.0, "c": 5.0, "d": 3.0, "e": 7.0}
    made = {name: weight([size, 1.0, 1.0], seed) for seed, (name, size) in enumerate(largest.items())}
    conditions = {name: float(np.linalg.cond(each.double().numpy())) for name, each in made.items()}
    assert sorted(conditions, key=lambda name: conditions[name]) == ["b", "d", "c", "e", "a"]
    chosen = {share: best_conditioned(made, share) for share in (0.01, 0.5, 0.6, 1.0)}
    assert chosen == {0.01: ["b"], 0.5: ["b", "d"], 0.6: ["b", "c", "d"], 1.0: list("abcde")}


@pytest.mark.parametrize("kept", [0.0, 0.25, 1.0])
def test_a_new_direction_is_scaled_and_all_others_stay(kept: float) -> None:
    """Checks a weight that uses 16 of 24 output directions and gets a large change in two unused ones.

    The two new directions are intruders. `kept` is the share of them that stays.
    """
    basis = rotation(24, 0)
    before = basis[:, :16] @ torch.diag(torch.linspace(1, 2, 16)) @ rotation(16, 1)
    inside = 0.1 * basis[:, :1] @ rotation(16, 2)[:1]
    intruders = 3 * basis[:, 20:22] @ (rotation(16, 1)[:2])
    found = with_fewer_intruders(before, before + inside + intruders, kept)
    left, sizes, right = np.linalg.svd((before + inside + intruders).double().numpy(), full_matrices=False)
    alike = np.abs(left.T @ np.linalg.svd(before.double().numpy(), full_matrices=False)[0]).max(1)
    outside = [place for place in range(10) if alike[place] < 0.5]
    assert len(outside) == 2
    taken = (1 - kept) * (left[:, outside] * sizes[outside]) @ right[outside]
    expected = (before + inside + intruders).double().numpy() - taken
    np.testing.assert_allclose(found.double().numpy(), expected, atol=1e-5)


def test_a_scaled_weight_has_no_intruders() -> None:
    before = weight([3.0, 2.0, 1.0, 0.5], 3)
    assert torch.allclose(with_fewer_intruders(before, 1.5 * before, 0.0), 1.5 * before)
