"""Losses of a model with parts for each domain, with and without ids."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapt.config import EvaluationConfig, ObjectiveConfig
from adapt.evaluate.by_domain import losses_by_domain
from adapt.evaluate.mlm_loss import Heldout, heldout_losses
from adapt.model.additions.adapters import attach_adapters
from adapt.model.additions.domains import attach_domains, choose_set, domains_of, own_parameters
from adapt.model.additions.route import domain_vectors
from adapt.model.load import load_model
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.build import make

EVALUATION, CPU = EvaluationConfig(sequence_length=32), torch.device("cpu")


@pytest.fixture
def parts(tiny_bert: Path) -> tuple[Any, Any, Heldout]:
    """A model with two domains, an objective, and documents of which each half belongs to one."""
    model = load_model(tiny_bert)
    attach_adapters(model, 2, 4, "sequential", "both", 1.0)
    attach_domains(model, ["first", "second"])
    draw = torch.Generator().manual_seed(0)
    for number in (0, 1):
        for parameter in own_parameters(model, number):
            parameter.data = torch.randn(parameter.shape, generator=draw) / 4
    numbers = np.random.default_rng(0)
    texts = [numbers.integers(8 + 12 * (n % 2), 20 + 12 * (n % 2), 30) for n in range(8)]
    vectors, known = domain_vectors(model, texts), domains_of(model)
    assert known is not None
    for number, name in enumerate(["first", "second"]):
        known.learn(name, torch.from_numpy(vectors[number::2].mean(0)))
    return model, make(ObjectiveConfig(), load_tokenizer(tiny_bert), 0), Heldout(list(range(8)), texts)


def alone(model: Any, objective: Any, sample: Heldout, number: int) -> np.ndarray:
    choose_set(model, number)
    return heldout_losses(model, objective, sample, EVALUATION, CPU)[0]


def test_each_document_takes_the_set_of_its_nearest_domain(parts: tuple[Any, Any, Heldout]) -> None:
    model, objective, sample = parts
    first, second = (alone(model, objective, sample, number) for number in (0, 1))
    expected = np.where(np.arange(8) % 2, second, first)
    found = losses_by_domain(model, objective, sample, EVALUATION, CPU)
    np.testing.assert_allclose(found.losses, expected, rtol=1e-5)
    assert found.routed == pytest.approx(expected.sum() / found.counts.sum())
    assert found.routed_right is None


def test_with_a_domain_given_all_take_its_set_and_the_others_are_told_apart(parts: tuple[Any, Any, Heldout]) -> None:
    model, objective, sample = parts
    expected = alone(model, objective, sample, 1)
    routed = losses_by_domain(model, objective, sample, EVALUATION, CPU).routed
    found = losses_by_domain(model, objective, sample, EVALUATION, CPU, "second")
    np.testing.assert_allclose(found.losses, expected, rtol=1e-5)
    assert (found.routed, found.routed_right, found.mixed) == (pytest.approx(routed), 0.5, None)
    unknown = losses_by_domain(model, objective, sample, EVALUATION, CPU, "third")  # not learnt yet
    assert (unknown.routed, unknown.routed_right, unknown.mixed) == (pytest.approx(routed), None, None)
    assert unknown.losses.sum() == pytest.approx(unknown.routed * unknown.counts.sum())
    right = losses_by_domain(model, objective, sample.only(range(1, 8, 2)), EVALUATION, CPU, "second")
    assert right.routed_right == 1
    np.testing.assert_allclose(right.losses, expected[1::2], rtol=1e-5)


def test_an_ordinary_model_has_one_loss(tiny_bert: Path, parts: tuple[Any, Any, Heldout]) -> None:
    _, objective, sample = parts
    model = load_model(tiny_bert)
    found = losses_by_domain(model, objective, sample, EVALUATION, CPU, "first")
    assert (found.routed, found.routed_right) == (None, None)
    np.testing.assert_array_equal(found.losses, heldout_losses(model, objective, sample, EVALUATION, CPU)[0])
