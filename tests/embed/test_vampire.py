"""Training of the topic model: repeatable, ended by coherence, with noise that is new in every batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapt.embed import vampire
from adapt.embed.table import embedder_of
from adapt.embed.vae import TopicVae
from adapt.errors import TrainingError
from tests.embed.toys import loaded, topical, votes

OPTIONS: dict[str, Any] = {"topics": 6, "epochs": 8, "learning_rate": 1e-2, "annealing_steps": 20, "batch_size": 32}


def test_texts_lie_beside_those_of_their_topic_and_topics_are_coherent(tmp_path: Path) -> None:
    texts, labels = topical(300)
    embedder = embedder_of("vampire", OPTIONS, 0)
    figures = embedder.learn(texts, tmp_path)
    embedder.load(tmp_path)
    assert votes(embedder.embed(texts).vectors, labels) > 0.9
    assert figures["npmi"] > 0.05
    assert embedder.embed(texts).vectors.shape == (300, 6)


def test_training_is_repeatable_and_the_seed_matters(tmp_path: Path) -> None:
    texts = topical(80)[0]
    few = {**OPTIONS, "epochs": 2}
    before = torch.get_rng_state()
    folders = [tmp_path / name for name in ("one", "two", "other")]
    for folder, seed in zip(folders, (0, 0, 1), strict=True):
        folder.mkdir()
        embedder_of("vampire", few, seed).learn(texts, folder)
    one, two, other = ((folder / vampire.WEIGHTS_FILE).read_bytes() for folder in folders)
    assert one == two
    assert one != other
    assert torch.equal(torch.get_rng_state(), before)  # other draws of the process are left alone


def test_every_batch_draws_noise_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published code seeds the generator anew before each."""
    drawn = []
    forward = TopicVae.forward

    def noted(self: TopicVae, bags: torch.Tensor, noise: torch.Tensor | None = None) -> Any:
        drawn.append(noise)
        return forward(self, bags, noise)

    monkeypatch.setattr(TopicVae, "forward", noted)
    embedder_of("vampire", {**OPTIONS, "epochs": 2}, 0).learn(topical(100)[0], tmp_path)
    firsts = [noise[0].tolist() for noise in drawn if noise is not None]
    assert len({*map(tuple, firsts)}) == len(firsts) >= 6


def test_training_ends_when_coherence_no_longer_rises_and_keeps_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, seen = iter([0.1, 0.3, 0.2, 0.2, 0.1, 0.4]), []

    def npmi(topics: np.ndarray, counts: Any) -> float:
        seen.append(topics.copy())
        return next(values)

    monkeypatch.setattr(vampire, "mean_npmi", npmi)
    embedder = embedder_of("vampire", {**OPTIONS, "epochs": 9, "patience": 3}, 0)
    figures = embedder.learn(topical(60)[0], tmp_path)
    assert (figures["epochs"], figures["best_epoch"], figures["npmi"]) == (5, 2, 0.3)
    embedder.load(tmp_path)
    np.testing.assert_array_equal(embedder._model.topics.numpy(), seen[1])  # type: ignore[attr-defined]


def test_the_divergence_comes_in_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adapt.embed import vae

    weights = []
    loss = vae.topic_loss
    monkeypatch.setattr(vae, "topic_loss", lambda passed, bags, weight: weights.append(weight) or loss(passed, bags, 1))
    embedder_of("vampire", {**OPTIONS, "epochs": 2, "annealing_steps": 5}, 0).learn(topical(96)[0], tmp_path)
    assert weights == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_vectors_do_not_depend_on_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = topical(60)[0]
    embedder = loaded("vampire", tmp_path, texts=texts, **{**OPTIONS, "epochs": 1})
    whole = embedder.embed(texts).vectors
    monkeypatch.setattr(vampire, "EMBEDDED_AT_ONCE", 7)
    np.testing.assert_allclose(embedder.embed(texts).vectors, whole, atol=1e-4)


def test_a_loss_that_is_not_finite_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the loss of vampire is"):
        embedder_of("vampire", {**OPTIONS, "learning_rate": 1e30}, 0).learn(topical(60)[0], tmp_path)
