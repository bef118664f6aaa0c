"""Tests of training the topic model: it is repeatable, resumes bit for bit, and ends when coherence stops rising."""

import copy
import tempfile
from itertools import combinations
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import batch_norm, cross_entropy

from adapt.embed import vae
from adapt.embed.bags import Bags, VampireOptions
from adapt.embed.vae import (
    MIXES,
    NOISE,
    Draw,
    SparseBags,
    TopicTraining,
    TopicVae,
    divergence,
    log_likelihood,
    mean_npmi,
)
from adapt.support.errors import TrainingError
from tests.embed.toys import TOPIC_OPTIONS, topical


def training(texts: int = 80, seed: int = 0, **options: Any) -> TopicTraining:
    counts = Bags.learnt(topical(texts)[0], 1000, 1)[1]
    return TopicTraining(counts, VampireOptions(**{**TOPIC_OPTIONS, **options}), seed, torch.device("cpu"))


def trained(made: TopicTraining) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Returns the final weights, and the metrics reported after each epoch."""
    told: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        made.run(told.append, Path(folder) / "state.pt")
    return made.model.state_dict(), [report for report in told if "npmi" in report]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one | other)


def test_training_is_repeatable_and_the_seed_matters() -> None:
    before = torch.get_rng_state()
    one, two, other = (trained(training(epochs=2, seed=seed))[0] for seed in (0, 0, 1))
    assert same(one, two)
    assert not same(one, other)
    assert torch.equal(torch.get_rng_state(), before)  # the global random state is unchanged


def test_the_loss_falls_and_topics_become_coherent() -> None:
    made = training(300)
    _, told = trained(made)
    assert told[-1]["loss"] < told[0]["loss"]
    assert made.best.npmi > max(0.1, told[0]["npmi"])
    assert [report["step"] for report in told] == [10 * epoch for epoch in range(1, len(told) + 1)]


@pytest.mark.parametrize("epochs", [1, 3, 5])
def test_a_resumed_run_gives_the_same_bits_as_an_uninterrupted_one(tmp_path: Path, epochs: int) -> None:
    whole = training()
    expected, _ = trained(whole)
    file = tmp_path / "state.pt"

    def stop(report: dict[str, Any]) -> None:
        if report.get("epoch") == epochs + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training().run(stop, file)
    second = training()
    second.load(file)
    assert second.epoch == epochs
    found, _ = trained(second)
    assert same(found, expected)
    assert same(second.best.weights, whole.best.weights)
    assert (second.best.epoch, second.best.npmi) == (whole.best.epoch, whole.best.npmi)


def test_every_batch_draws_different_noise_and_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise and dropout differ between batches.

    The published code seeds the generator before each batch, so all its batches get the same noise.
    """
    drawn: list[Draw] = []
    forward = TopicVae.forward

    def noted(self: TopicVae, bags: Any, draw: Draw, *arguments: Any) -> Any:
        drawn.append(draw)
        return forward(self, bags, draw, *arguments)

    monkeypatch.setattr(TopicVae, "forward", noted)
    trained(training(100, epochs=2))
    assert len({tuple(draw.noise[0].tolist()) for draw in drawn}) == len(drawn) == 8
    assert len({tuple(draw.kept.flatten().tolist()) for draw in drawn}) == len(drawn)


def test_the_weight_of_the_divergence_rises_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    weights: list[float] = []
    forward = TopicVae.forward

    def noted(self: TopicVae, bags: Any, draw: Draw, weight: float, *arguments: Any) -> Any:
        weights.append(weight)
        return forward(self, bags, draw, weight, *arguments)

    monkeypatch.setattr(TopicVae, "forward", noted)
    trained(training(96, epochs=2, annealing_steps=5))
    assert weights == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_the_weight_of_the_divergence_continues_to_rise_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    weights: list[float] = []
    made = training(96, epochs=2, annealing_steps=12)
    forward = TopicVae.forward
    monkeypatch.setattr(TopicVae, "forward", lambda *given: weights.append(given[3]) or forward(*given))
    made.step = 3
    trained(made)
    assert weights == pytest.approx([4 / 12, 5 / 12, 6 / 12])


def test_training_ends_when_coherence_no_longer_rises_and_keeps_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([0.1, 0.3, 0.2, 0.2, 0.1, 0.4])
    monkeypatch.setattr(vae, "mean_npmi", lambda *_: next(values))
    made, saved = training(60, epochs=9, patience=3), []
    made.run(lambda _: saved.append(copy.deepcopy(made.model.state_dict())), tmp_path / "state.pt")
    assert (len(saved), made.best.epoch, made.best.npmi) == (5, 2, 0.3)
    assert same(made.best.weights, saved[1])


def test_a_loss_that_is_not_finite_ends_the_training() -> None:
    with pytest.raises(TrainingError, match="the loss of the embedder vampire is"):
        trained(training(60, learning_rate=1e30))


WORDS, TOPICS, DOCUMENTS = 12, 5, 6
COUNTS = np.random.default_rng(0).poisson(0.7, (DOCUMENTS, WORDS)).astype(np.float32)
COUNTS[3] = 0  # one document has no known word
BAGS, DENSE = SparseBags.of(csr_matrix(COUNTS)), torch.from_numpy(COUNTS)


def model() -> TopicVae:
    torch.manual_seed(0)
    return TopicVae(torch.randn(WORDS).log_softmax(-1), TOPICS)


def test_the_divergence_is_that_of_normal_distributions() -> None:
    mean, log_variance = torch.randn(7, TOPICS), torch.randn(7, TOPICS)
    expected = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0)).sum(-1)
    torch.testing.assert_close(divergence(mean, log_variance), expected)


def test_the_likelihood_is_that_of_every_word() -> None:
    logits = torch.randn(DOCUMENTS, WORDS)
    each = [-cross_entropy(logits[n], torch.tensor(w)) * DENSE[n, w] for n in range(DOCUMENTS) for w in range(WORDS)]
    torch.testing.assert_close(log_likelihood(logits, BAGS), sum(each))


def test_the_likelihood_is_multinomial_up_to_the_order_of_words() -> None:
    logits = torch.randn(1, WORDS)
    multinomial = torch.distributions.Multinomial(int(DENSE[0].sum()), logits=logits)
    orders = torch.lgamma(DENSE[0].sum() + 1) - torch.lgamma(DENSE[0] + 1).sum()
    own = log_likelihood(logits, SparseBags.of(csr_matrix(COUNTS[:1])))
    torch.testing.assert_close(own, multinomial.log_prob(DENSE[0])[0] - orders)


def test_the_loss_is_weighted_divergence_minus_log_likelihood() -> None:
    vae, draw = model(), Draw.by_seed(3, DOCUMENTS, TOPICS, 0.4)
    one = torch.relu(DENSE @ vae.first.weight + vae.first_bias)
    two = torch.relu(vae.second(one))
    posterior = Normal(vae.mean(two), (vae.log_variance(two) / 2).exp())
    theta = ((posterior.mean + posterior.stddev * draw.noise) * draw.kept).softmax(-1)
    logits = batch_norm(vae.decoder(theta), None, None, training=True, eps=NOISE) + vae.background
    lost = 0.3 * kl_divergence(posterior, Normal(0.0, 1.0)).sum() - (DENSE * logits.log_softmax(-1)).sum()
    torch.testing.assert_close(vae(BAGS, draw, 0.3), lost / DOCUMENTS)


def test_a_document_of_thousands_of_words_leaves_the_loss_finite() -> None:
    vae = model()
    with torch.no_grad():
        vae.first.weight.fill_(0.5)
        vae.second.weight.fill_(0.5)
        vae.log_variance.weight.fill_(0.5)
        bags = SparseBags.of(csr_matrix(1000 * COUNTS))
        assert torch.isfinite(vae(bags, Draw.by_seed(0, DOCUMENTS, TOPICS, 0.4), 1.0))


def test_dropout_leaves_out_its_share_and_keeps_the_mean() -> None:
    draw = Draw.by_seed(0, 400, 50, 0.49)
    assert (draw.kept == 0).double().mean() == pytest.approx(0.49, abs=0.02)
    assert draw.kept.double().mean() == pytest.approx(1, abs=0.04)
    assert draw.noise.std() == pytest.approx(1, abs=0.02)
    assert not torch.equal(draw.noise, Draw.by_seed(1, 400, 50, 0.49).noise)


def test_the_background_is_the_logits_if_topics_add_nothing() -> None:
    vae = model()
    with torch.no_grad():
        vae.decoder.weight.zero_()
        logits = vae.logits(torch.rand(4, TOPICS).softmax(-1))
    torch.testing.assert_close(logits, vae.background.expand(4, -1))


def test_the_background_is_the_mean_of_the_logits() -> None:
    """The background must be the mean of the logits.

    The published code adds the background before a normalization, which removes any constant.
    """
    vae = model()
    with torch.no_grad():
        logits = vae.logits(torch.randn(40, TOPICS).softmax(-1))
    torch.testing.assert_close(logits.mean(0), vae.background)
    assert 0.5 < logits.std(0).mean() < 1.05


@pytest.mark.parametrize(("mix", "weight"), [("mixed", 0), ("published", -20)])
def test_vectors_are_weighted_sums_of_both_layers_and_theta(mix: str, weight: float) -> None:
    vae = model()
    one = torch.relu(DENSE @ vae.first.weight + vae.first_bias)
    two = torch.relu(vae.second(one))
    torch.testing.assert_close(vae.vectors(BAGS, mix), one + weight * two + vae.mean(two).softmax(-1))


def test_layers_are_mixed_as_by_the_softmax_of_vampires_code() -> None:
    """The weights of layers are twice the softmax in VAMPIRE's code. Cosine similarity ignores the factor 2."""
    shares = torch.tensor([1.0, -20.0, 1.0]).softmax(-1)
    torch.testing.assert_close(2 * shares, torch.tensor([1.0, MIXES["mixed"], 1.0]), atol=1e-8, rtol=0)


def by_hand(topics: np.ndarray, counts: np.ndarray, most: int) -> float:
    documents = [{word for word, count in enumerate(row) if count} for row in counts]

    def share(*words: int) -> float:
        return sum(set(words) <= document for document in documents) / len(documents)

    def npmi(one: int, other: int) -> float:
        together = share(one, other)
        return log(together / (share(one) * share(other))) / -log(together) if 0 < together < 1 else 0.0

    first = [sorted(range(len(topic)), key=lambda word, topic=topic: -topic[word])[:most] for topic in topics]
    return float(np.mean([npmi(*pair) for words in first for pair in combinations(words, 2)]))


@pytest.mark.parametrize("seed", range(4))
def test_npmi_matches_a_direct_count_of_all_pairs(seed: int) -> None:
    draw = np.random.default_rng(seed)
    counts = draw.poisson(draw.uniform(0.02, 1.5, 12), (40, 12)).astype(np.float32)
    counts[:, 0] = 1  # word 0 occurs in every document
    topics = draw.normal(size=(3, 12))
    assert mean_npmi(topics, csr_matrix(counts), 5) == pytest.approx(by_hand(topics, counts, 5), abs=1e-12)


def test_words_that_always_occur_together_have_npmi_one() -> None:
    counts = csr_matrix(np.array([[1, 2, 0, 0], [3, 1, 0, 0], [0, 0, 1, 1], [0, 0, 5, 1]], np.float32))
    assert mean_npmi(np.array([[2.0, 1.0, 0, 0], [0, 0, 2.0, 1.0]]), counts, 2) == pytest.approx(1)
    assert mean_npmi(np.array([[2.0, 0, 1.0, 0]]), counts, 2) == 0
