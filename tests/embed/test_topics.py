"""Training of the topic model: repeatable, resumed bit for bit, the same on any number of ranks, ended by coherence."""

import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapt.embed import topics
from adapt.embed.bags import Bags
from adapt.embed.topics import TopicTraining
from adapt.embed.vae import Draw, TopicVae
from adapt.embed.vampire import VampireOptions
from adapt.errors import TrainingError
from adapt.train.tracking.progress import Progress
from tests.embed.toys import TOPIC_OPTIONS, topical
from tests.train.ranks import Ranks


def training(texts: int = 80, seed: int = 0, **options: Any) -> TopicTraining:
    counts = Bags.learnt(topical(texts)[0], 1000, 1)[1]
    return TopicTraining(counts, VampireOptions(**{**TOPIC_OPTIONS, **options}), seed, torch.device("cpu"))


def trained(made: TopicTraining, start: Progress | None = None) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The weights at the end, and what was reported after each epoch."""
    told: list[dict[str, Any]] = []
    made.run(start or Progress(), told.append, lambda _: None)
    return made.model.state_dict(), [report for report in told if "npmi" in report]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one | other)


def test_training_is_repeatable_and_the_seed_matters() -> None:
    before = torch.get_rng_state()
    one, two, other = (trained(training(epochs=2, seed=seed))[0] for seed in (0, 0, 1))
    assert same(one, two)
    assert not same(one, other)
    assert torch.equal(torch.get_rng_state(), before)  # other draws of the process are left alone


def test_the_loss_falls_and_topics_become_coherent() -> None:
    made = training(300)
    _, told = trained(made)
    assert told[-1]["loss"] < told[0]["loss"]
    assert made.best.npmi > max(0.1, told[0]["npmi"])
    assert [report["step"] for report in told] == [10 * epoch for epoch in range(1, len(told) + 1)]


@pytest.mark.parametrize("epochs", [1, 3, 5])
def test_a_run_that_resumes_ends_bit_for_bit_where_one_that_did_not_stop_ends(tmp_path: Path, epochs: int) -> None:
    whole = training()
    expected, _ = trained(whole)
    saved = []

    def save(progress: Progress) -> None:
        saved.append(progress.step)
        if len(saved) == epochs:
            first.save(tmp_path, asdict(progress))
            raise KeyboardInterrupt

    first = training()
    with pytest.raises(KeyboardInterrupt):
        first.run(Progress(), lambda _: None, save)
    second = training()
    progress = Progress(**second.load(tmp_path))
    assert progress.step == epochs * second.steps_an_epoch
    found, _ = trained(second, progress)
    assert same(found, expected)
    assert same(second.best.weights, whole.best.weights)
    assert (second.best.epoch, second.best.npmi) == (whole.best.epoch, whole.best.npmi)


def on_rank(texts: int, options: dict[str, Any]) -> tuple[list[np.ndarray], list[dict[str, Any]]]:
    state, told = trained(training(texts, **options))
    return [value.numpy() for value in state.values()], told


@pytest.mark.heavy
@pytest.mark.parametrize(("world", "texts", "batch_size"), [(2, 80, 32), (3, 40, 2)])
def test_ranks_share_batches_and_learn_what_one_learns(world: int, texts: int, batch_size: int) -> None:
    """Also where some have no document of a batch."""
    options = {"epochs": 2, "batch_size": batch_size, "annealing_steps": 50}
    alone, told = on_rank(texts, options)
    group = Ranks(world)
    try:
        found = group.run(on_rank, texts, options)
    finally:
        group.stop()
    for weights, reports in found:
        for one, other in zip(weights, alone, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-4)
        assert [each["loss"] for each in reports] == pytest.approx([each["loss"] for each in told], rel=1e-4)
    for one, other in zip(found[0][0], found[-1][0], strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_batch_draws_noise_and_dropout_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published code seeds the generator anew before each."""
    drawn: list[Draw] = []
    forward = TopicVae.forward

    def noted(self: TopicVae, bags: Any, draw: Draw, *arguments: Any) -> Any:
        drawn.append(draw)
        return forward(self, bags, draw, *arguments)

    monkeypatch.setattr(TopicVae, "forward", noted)
    trained(training(100, epochs=2))
    assert len({tuple(draw.noise[0].tolist()) for draw in drawn}) == len(drawn) == 8
    assert len({tuple(draw.kept.flatten().tolist()) for draw in drawn}) == len(drawn)


def test_the_divergence_comes_in_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    weights: list[float] = []
    forward = TopicVae.forward

    def noted(self: TopicVae, bags: Any, draw: Draw, weight: float, *arguments: Any) -> Any:
        weights.append(weight)
        return forward(self, bags, draw, weight, *arguments)

    monkeypatch.setattr(TopicVae, "forward", noted)
    trained(training(96, epochs=2, annealing_steps=5))
    assert weights == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_the_weight_of_the_divergence_goes_on_rising_where_a_run_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    weights: list[float] = []
    made = training(96, epochs=2, annealing_steps=12)
    forward = TopicVae.forward
    monkeypatch.setattr(TopicVae, "forward", lambda *given: weights.append(given[3]) or forward(*given))
    trained(made, Progress(step=3))
    assert weights == pytest.approx([4 / 12, 5 / 12, 6 / 12])


def test_training_ends_when_coherence_no_longer_rises_and_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([0.1, 0.3, 0.2, 0.2, 0.1, 0.4])
    monkeypatch.setattr(topics, "mean_npmi", lambda *_: next(values))
    made, saved = training(60, epochs=9, patience=3), []
    made.run(Progress(), lambda _: None, lambda _: saved.append(copy.deepcopy(made.model.state_dict())))
    assert (len(saved), made.best.epoch, made.best.npmi) == (5, 2, 0.3)
    assert same(made.best.weights, saved[1])


def test_a_loss_that_is_not_finite_ends_the_training() -> None:
    with pytest.raises(TrainingError, match="the loss of vampire is"):
        trained(training(60, learning_rate=1e30))
