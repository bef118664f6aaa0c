"""The mixture of experts, against weights that are updated prediction by prediction."""

from typing import Any

import numpy as np
import pytest
import torch

from adapt.config import EvaluationConfig, ObjectiveConfig
from adapt.evaluate.by_domain import losses_by_domain
from adapt.evaluate.mixture import mixture_losses
from adapt.evaluate.mlm_loss import Heldout
from adapt.model.additions.domains import attach_domains, choose_set, own_parameters
from adapt.model.additions.experts import attach_experts
from adapt.objective.build import make
from tests.model.families import ready
from tests.train.toy import Tokenizer

CPU, LENGTH = torch.device("cpu"), 8


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
    """What each expert gives to what is to be predicted, by row and prediction, in order."""
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
def test_weights_follow_what_each_expert_has_predicted(kind: Any, family: str) -> None:
    """A document of several pieces goes on with the weights of the piece before."""
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
    found = losses_by_domain(model, objective, sample, evaluation, CPU, "domain 1")
    assert found.mixed == pytest.approx(sum(expected) / found.counts.sum(), rel=1e-5)
    assert found.mixed != pytest.approx(found.losses.sum() / found.counts.sum(), rel=1e-3)
    assert found.mixed != pytest.approx(found.routed, rel=1e-3)


def test_equal_experts_mix_to_one() -> None:
    losses = np.array([[3.0, 500.0, 0.0]] * 4)
    np.testing.assert_allclose(mixture_losses(losses), losses[0], atol=1e-12)
    apart = np.array([[3.0, 900.0], [800.0, 1.0]])  # no probability is lost to rounding
    np.testing.assert_allclose(mixture_losses(apart), [3.0 + np.log(2), 1.0 + np.log(2)])
