"""Compares each merge method with its formula computed in numpy."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from adapt.merge.merger import DECAYS, Merger, Merging, Ties, decay_weights, smallest_kept
from adapt.merge.table import MERGERS

SHAPES = {"one.weight": (7, 5), "one.bias": (5,), "scale": ()}


def tensors(models: int, seed: int = 0) -> dict[str, list[Tensor]]:
    """Returns, for each tensor name, random tensors of the base and of each model. The base's tensor is the first."""
    rng = np.random.default_rng(seed)
    made = {
        name: [rng.normal(size=shape).astype(np.float32) for _ in range(models + 1)] for name, shape in SHAPES.items()
    }
    return {name: [torch.from_numpy(np.array(one)) for one in each] for name, each in made.items()}


def made(kind: str, given: dict[str, list[Tensor]], share: float, **more: object) -> dict[str, np.ndarray]:
    models = len(next(iter(given.values()))) - 1
    known: dict[str, object] = {"weights": (1.0,) * models, "density": None, "seed": 0, **more}
    merger = MERGERS.load(kind)(Merging(kind, (share,), **known))  # type: ignore[arg-type]
    merger.look(lambda: ((base, list(rest)) for base, *rest in given.values()))
    return {
        name: merger.route(name, base.clone(), [one.clone() for one in rest])(share).numpy()
        for name, (base, *rest) in given.items()
    }


def close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


def arrays(given: dict[str, list[Tensor]]) -> dict[str, list[np.ndarray]]:
    return {name: [one.numpy().astype(np.float64) for one in each] for name, each in given.items()}


def test_interpolation_is_the_straight_line_and_exact_at_both_ends() -> None:
    given = tensors(1)
    for share in (0.25, 0.9, 1.5, -0.5):
        close(
            made("interpolate", given, share), {n: (1 - share) * a + share * b for n, (a, b) in arrays(given).items()}
        )
    for share, place in ((0.0, 0), (1.0, 1)):
        found = made("interpolate", given, share)
        assert all((found[name] == each[place].numpy()).all() for name, each in given.items())


def test_average_with_weights_at_several_shares() -> None:
    given, weights = tensors(3), (1.0, 2.0, 5.0)
    mean = {name: np.average(rest, axis=0, weights=weights) for name, (_, *rest) in arrays(given).items()}
    close(made("average", given, 1.0, weights=weights), mean)
    base = {name: each[0] for name, each in arrays(given).items()}
    close(made("average", given, 0.3, weights=weights), {n: 0.7 * base[n] + 0.3 * mean[n] for n in mean})


@pytest.mark.parametrize("decay", DECAYS)
def test_decay_weights_equal_a_run_with_decayed_updates(decay: str) -> None:
    """The average equals the first checkpoint plus the later updates, scaled as by learning rate decay (WSM)."""
    rng, count = np.random.default_rng(1), 5
    updates = rng.normal(size=(count, 4))
    checkpoints = np.cumsum(updates, axis=0)
    weights = decay_weights(decay, count)
    left = {"linear": lambda x: 1 - x, "cosine": lambda x: math.cos(math.pi * x / 2) ** 2, "sqrt": lambda x: 1 - x**0.5}
    decayed = sum(left[decay](number / count) * update for number, update in enumerate(updates))
    np.testing.assert_allclose(np.average(checkpoints, axis=0, weights=weights), decayed, atol=1e-12)
    assert sum(weights) == pytest.approx(1)
    assert min(weights) > 0
    if decay == "linear":
        assert weights == pytest.approx((0.2,) * 5)  # linear decay gives equal weights


def test_task_arithmetic_adds_weighted_task_vectors() -> None:
    given, weights = tensors(2), (0.5, -2.0)
    expected = {n: a + 0.4 * (0.5 * (b - a) - 2 * (c - a)) for n, (a, b, c) in arrays(given).items()}
    close(made("task_arithmetic", given, 0.4, weights=weights), expected)


def test_the_residual_is_added_to_the_adapted_base() -> None:
    given = tensors(2)
    expected = {n: adapted + 0.8 * (instruct - base) for n, (base, adapted, instruct) in arrays(given).items()}
    close(made("residual", given, 0.8), expected)


# --- TIES


def ties_in_numpy(
    given: dict[str, list[Tensor]], density: float, weights: Sequence[float], share: float
) -> dict[str, np.ndarray]:
    """Computes TIES as published, with all tensors joined to one vector."""
    flat = [
        np.concatenate([each[place].numpy().ravel() for each in given.values()]) for place in range(len(weights) + 1)
    ]
    kept = []
    for model in flat[1:]:
        learnt = model - flat[0]
        smallest = np.sort(np.abs(learnt))[::-1][round(density * len(learnt)) - 1]
        kept.append(np.where(np.abs(learnt) >= smallest, learnt, 0))
    elected = np.sign(sum(weight * one for weight, one in zip(weights, kept, strict=True)))
    agree = [(np.sign(one) == elected) & (elected != 0) for one in kept]
    total = sum(weight * one * yes for weight, one, yes in zip(weights, kept, agree, strict=True))
    voters = sum(weight * yes for weight, yes in zip(weights, agree, strict=True))
    merged = flat[0] + share * np.divide(total, voters, out=np.zeros_like(flat[0], dtype=np.float64), where=voters > 0)
    ends = np.cumsum([each[0].numel() for each in given.values()])
    parts = np.split(merged, ends[:-1])
    return {name: part.reshape(each[0].shape) for (name, each), part in zip(given.items(), parts, strict=True)}


@pytest.mark.parametrize(
    ("density", "weights"), [(0.2, (1.0, 1.0, 1.0)), (0.5, (1.0, 3.0, 0.5)), (1.0, (1.0, 1.0, 1.0))]
)
def test_ties_trims_over_all_tensors_elects_signs_and_averages_what_agrees(
    density: float, weights: tuple[float, ...]
) -> None:
    given = tensors(3)
    close(made("ties", given, 0.7, weights=weights, density=density), ties_in_numpy(given, density, weights, 0.7))


def test_ties_by_hand() -> None:
    """Checks TIES with density 0.4, which keeps the two largest of each model's five differences from the base.

    At index 1, both differences are negative and their mean is -3. At index 3, the signs disagree: the sum 3 - 5 is
    negative, so only -5 is used.
    """
    base = torch.zeros(5)
    one = torch.tensor([0.1, -4.0, 0.2, 3.0, 0.0])
    two = torch.tensor([0.3, -2.0, 0.1, -5.0, 0.0])
    found = made("ties", {"w": [base, one, two]}, 1.0, density=0.4)["w"]
    np.testing.assert_allclose(found, [0, -3, 0, -5, 0])
    all_kept = made("ties", {"w": [base, one, two]}, 1.0, density=1.0)["w"]
    np.testing.assert_allclose(all_kept, [0.2, -3, 0.15, -5, 0], rtol=1e-6)


def test_ties_uses_equal_differences_and_ignores_elements_without_a_sign() -> None:
    base = torch.zeros(4)
    found = made("ties", {"w": [base, torch.tensor([1.0, 1.0, 1.0, 0.5])]}, 1.0, density=0.25)["w"]
    np.testing.assert_allclose(found, [1, 1, 1, 0])
    even = made("ties", {"w": [base, torch.ones(4), -torch.ones(4)]}, 1.0, density=1.0)["w"]
    np.testing.assert_allclose(even, np.zeros(4))


@pytest.mark.parametrize("density", [1e-9, 0.01, 0.3, 0.77, 0.999])
def test_the_threshold_of_ties_is_exact(density: float) -> None:
    """Compares the threshold that the code finds by counting with a threshold that the test finds by sorting.

    The values span many powers of ten, and many of them are equal.
    """
    rng = np.random.default_rng(3)
    learnt = rng.normal(size=3000) * 10.0 ** rng.integers(-30, 6, 3000)
    learnt[::7] = 0
    learnt[::5] = 0.25
    model = torch.from_numpy(learnt.astype(np.float32))
    parts = [(torch.zeros(len(part)), [part, -2 * part]) for part in model.split([1000, 1, 1999])]
    order = np.sort(np.abs(model.numpy()))[::-1]
    wanted = order[max(1, round(density * 3000)) - 1]
    assert smallest_kept(lambda: iter(parts), density) == [wanted, 2 * wanted]


# --- DARE


def test_dare_keeps_differences_at_random_and_scales_them() -> None:
    given = {"w": [torch.zeros(40, 1000), torch.ones(40, 1000)]}
    found = made("dare", given, 0.5, density=0.1)["w"]
    kept = found != 0
    np.testing.assert_allclose(found[kept], 0.5 / 0.1, rtol=1e-6)
    deviation = math.sqrt(0.1 * 0.9 / 40_000)
    assert abs(kept.mean() - 0.1) < 4 * deviation
    # about 10% of the elements of every column are kept
    assert abs(kept.mean(axis=0) - 0.1).max() < 6 * math.sqrt(0.1 * 0.9 / 40)


def test_the_expectation_of_dare_is_task_arithmetic() -> None:
    given, weights = tensors(2), (1.0, 0.5)
    seeds = [made("dare", given, 1.0, weights=weights, density=0.5, seed=seed) for seed in range(400)]
    expected = made("task_arithmetic", given, 1.0, weights=weights)
    for name, value in expected.items():
        draws = np.stack([one[name] for one in seeds])
        error = draws.std(axis=0, ddof=1) / math.sqrt(len(seeds))
        assert (np.abs(draws.mean(axis=0) - value) < 4.5 * error + 1e-6).all()


def test_dare_draws_depend_only_on_seed_model_and_name() -> None:
    given = {name: [torch.zeros(64), torch.ones(64)] for name in ("a", "b")}

    def drawn(names: Sequence[str], **more: object) -> dict[str, tuple[float, ...]]:
        return {n: tuple(v) for n, v in made("dare", {n: given[n] for n in names}, 1.0, density=0.5, **more).items()}

    first = drawn("ab")
    assert drawn("ba") == first == drawn("ab", seed=0)
    assert drawn("b") == {"b": first["b"]}
    assert first["a"] != first["b"]
    assert drawn("ab", seed=1)["a"] != first["a"]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 + threads)
        assert drawn("ab") == first
    finally:
        torch.set_num_threads(threads)
    twice = {"a": [torch.zeros(64), torch.ones(64), torch.ones(64)]}
    # Each model has its own random mask, so the number of models that contribute an element is 0, 1 or 2.
    assert set(made("dare", twice, 1.0, density=0.5)["a"]) == {0.0, 2.0, 4.0}


def test_dare_with_density_one_is_task_arithmetic() -> None:
    given = tensors(2)
    close(made("dare", given, 0.6, density=1.0), made("task_arithmetic", given, 0.6))


def test_no_merger_changes_its_inputs() -> None:
    for kind in MERGERS:
        way = MERGERS.load(kind)
        given = tensors(2 if way.models[1] != 1 else 1)
        before = {name: [one.clone() for one in each] for name, each in given.items()}
        merger: Merger = way(Merging(kind, (0.5,), (1.0, 1.0) if way.is_weighted else (), way.density, 0))
        parts = [(base, rest) for base, *rest in given.values()]
        merger.look(parts.__iter__)
        for name, (base, *rest) in given.items():
            route = merger.route(name, base, rest)
            first = route(0.25)
            route(0.75)
            assert torch.equal(route(0.25), first)
            assert all(torch.equal(a, b) for a, b in zip([base, *rest], before[name], strict=True))
    assert Ties.density == 0.2
