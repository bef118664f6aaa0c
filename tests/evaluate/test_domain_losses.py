"""Tests held-out losses of models with separate parameters per domain, and of mixtures of experts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapt.config import EvaluationConfig, ObjectiveConfig
from adapt.evaluate.losses import Heldout, heldout_losses, losses_by_domain, mixture_losses
from adapt.model.additions.domain_modules import (
    attach_adapters,
    attach_domains,
    attach_experts,
    choose_set,
    domain_vectors,
    domains_of,
    own_parameters,
)
from adapt.model.load import load_model
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.masking import make
from tests.model.families import ready
from tests.train.toy import Tokenizer

EVALUATION, CPU = EvaluationConfig(sequence_length=32), torch.device("cpu")


@pytest.fixture
def parts(tiny_bert: Path) -> tuple[Any, Any, Heldout]:
    """Returns a model with adapters for two domains, an objective, and eight documents of alternating domains."""
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


def test_each_document_is_measured_with_the_parts_of_its_nearest_domain(parts: tuple[Any, Any, Heldout]) -> None:
    model, objective, sample = parts
    first, second = (alone(model, objective, sample, number) for number in (0, 1))
    expected = np.where(np.arange(8) % 2, second, first)
    found = losses_by_domain(model, objective, sample, EVALUATION, CPU)
    np.testing.assert_allclose(found.losses, expected, rtol=1e-5)
    assert found.routed == pytest.approx(expected.sum() / found.counts.sum())
    assert found.routed_right is None


def test_a_known_domain_uses_its_own_parts_and_reports_routing(parts: tuple[Any, Any, Heldout]) -> None:
    model, objective, sample = parts
    expected = alone(model, objective, sample, 1)
    routed = losses_by_domain(model, objective, sample, EVALUATION, CPU).routed
    found = losses_by_domain(model, objective, sample, EVALUATION, CPU, "second")
    np.testing.assert_allclose(found.losses, expected, rtol=1e-5)
    assert (found.routed, found.routed_right, found.mixed) == (pytest.approx(routed), 0.5, None)
    # The model has no parameters for "third", so it uses those of the nearest domain and reports no accuracy.
    unknown = losses_by_domain(model, objective, sample, EVALUATION, CPU, "third")
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


DEVICE, LENGTH = torch.device("cpu"), 8


def experts(family: str, count: int) -> Any:
    model: Any = ready(family)
    attach_experts(model, count)
    attach_domains(model, [f"domain {number}" for number in range(count)])
    draw = torch.Generator().manual_seed(2)
    for number in range(count):
        for parameter in own_parameters(model, number):
            parameter.data += torch.randn(parameter.shape, generator=draw) / 8
    return model


def probabilities(model: Any, corrupted: Any) -> list[list[list[float]]]:
    """Returns the probability that each expert gives to each target token, indexed by row, prediction and expert."""
    found, targets = [], corrupted.targets.split(corrupted.positions.sum(1).tolist())
    for row, (ids, positions) in enumerate(zip(corrupted.input_ids, corrupted.positions, strict=True)):
        ids, by_expert = ids[corrupted.real[row]], []
        for number in (0, 1, 2):
            choose_set(model, number)
            scores = model(input_ids=ids[None]).logits[0].detach().double().softmax(-1)
            at = positions[: len(ids)].nonzero().flatten()
            by_expert.append(scores[at, targets[row]].tolist())
        found.append([list(each) for each in zip(*by_expert, strict=True)])
    return found


@pytest.mark.parametrize(("kind", "family"), [("causal", "gpt2"), ("mlm", "bert")])
def test_mixture_weights_are_posteriors_of_the_experts(kind: Any, family: str) -> None:
    """Compares mixture losses with Bayes' rule applied to one prediction after another.

    Each document starts with equal weights of the experts. If a document is split, a part starts with the weights that
    the previous part ended with.
    """
    model, draw = experts(family, 3), np.random.default_rng(0)
    texts = [draw.integers(5, 50, length) for length in (7, 20, 8, 3)]
    sample = Heldout(list(range(4)), texts)
    objective = make(ObjectiveConfig(kind=kind, mask_fraction=0.4), Tokenizer(), 0)  # type: ignore[arg-type]
    pieces: dict[int, list[tuple[int, Any]]] = {}
    for index, batch in sample.batches(LENGTH, 1):
        (rows,) = probabilities(model, objective.corrupt(batch))
        pieces.setdefault(int(index[0]), []).append((int(batch.rows[0]), rows))
    expected = []
    for index in range(4):
        weights, loss = [1 / 3] * 3, 0.0
        for _, predictions in sorted(pieces[index], key=lambda piece: piece[0]):
            for each in predictions:
                mixed = sum(weight * p for weight, p in zip(weights, each, strict=True))
                loss -= np.log(mixed)
                weights = [weight * p / mixed for weight, p in zip(weights, each, strict=True)]
        expected.append(loss)
    evaluation = EvaluationConfig(sequence_length=LENGTH, micro_batch=2)
    found = losses_by_domain(model, objective, sample, evaluation, DEVICE, "domain 1")
    assert found.mixed == pytest.approx(sum(expected) / found.counts.sum(), rel=1e-5)
    assert found.mixed != pytest.approx(found.losses.sum() / found.counts.sum(), rel=1e-3)
    assert found.mixed != pytest.approx(found.routed, rel=1e-3)


def test_a_mixture_of_equal_experts_equals_one_expert() -> None:
    losses = np.array([[3.0, 500.0, 0.0]] * 4)
    np.testing.assert_allclose(mixture_losses(losses), losses[0], atol=1e-12)
    # Probabilities as small as exp(-900) must not become 0 by rounding.
    apart = np.array([[3.0, 900.0], [800.0, 1.0]])
    np.testing.assert_allclose(mixture_losses(apart), [3.0 + np.log(2), 1.0 + np.log(2)])
