"""The topic model's formulas, against torch's own."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import batch_norm, cross_entropy

from adapt.embed.vae import MIXES, NOISE, Draw, SparseBags, TopicVae, divergence, log_likelihood

WORDS, TOPICS, DOCUMENTS = 12, 5, 6
COUNTS = np.random.default_rng(0).poisson(0.7, (DOCUMENTS, WORDS)).astype(np.float32)
COUNTS[3] = 0  # a document without a word
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


def test_the_likelihood_is_the_multinomials_but_for_the_orders_of_words() -> None:
    logits = torch.randn(1, WORDS)
    multinomial = torch.distributions.Multinomial(int(DENSE[0].sum()), logits=logits)
    orders = torch.lgamma(DENSE[0].sum() + 1) - torch.lgamma(DENSE[0] + 1).sum()
    own = log_likelihood(logits, SparseBags.of(csr_matrix(COUNTS[:1])))
    torch.testing.assert_close(own, multinomial.log_prob(DENSE[0])[0] - orders)


def test_the_loss_is_minus_likelihood_and_the_weighed_divergence_of_what_was_drawn() -> None:
    vae, draw = model(), Draw.by_seed(3, DOCUMENTS, TOPICS, 0.4)
    one = torch.relu(DENSE @ vae.first.weight + vae.first_bias)
    two = torch.relu(vae.second(one))
    posterior = Normal(vae.mean(two), (vae.log_variance(two) / 2).exp())
    theta = ((posterior.mean + posterior.stddev * draw.noise) * draw.kept).softmax(-1)
    logits = batch_norm(vae.decoder(theta), None, None, training=True, eps=NOISE) + vae.background
    lost = 0.3 * kl_divergence(posterior, Normal(0.0, 1.0)).sum() - (DENSE * logits.log_softmax(-1)).sum()
    torch.testing.assert_close(vae(BAGS, draw, 0.3, DOCUMENTS), lost / DOCUMENTS)


def test_a_document_of_thousands_of_words_leaves_the_loss_finite() -> None:
    vae = model()
    with torch.no_grad():
        vae.first.weight.fill_(0.5)
        vae.second.weight.fill_(0.5)
        vae.log_variance.weight.fill_(0.5)
        bags = SparseBags.of(csr_matrix(1000 * COUNTS))
        assert torch.isfinite(vae(bags, Draw.by_seed(0, DOCUMENTS, TOPICS, 0.4), 1.0, DOCUMENTS))


def test_dropout_leaves_out_its_share_and_keeps_the_mean() -> None:
    draw = Draw.by_seed(0, 400, 50, 0.49)
    assert (draw.kept == 0).double().mean() == pytest.approx(0.49, abs=0.02)
    assert draw.kept.double().mean() == pytest.approx(1, abs=0.04)
    assert draw.noise.std() == pytest.approx(1, abs=0.02)
    assert not torch.equal(draw.noise, Draw.by_seed(1, 400, 50, 0.49).noise)


def test_the_background_are_the_logits_where_topics_add_nothing() -> None:
    vae = model()
    with torch.no_grad():
        vae.decoder.weight.zero_()
        logits = vae.logits(torch.rand(4, TOPICS).softmax(-1), 4)
    torch.testing.assert_close(logits, vae.background.expand(4, -1))


def test_the_background_is_the_mean_of_the_logits_and_not_taken_away_again() -> None:
    """Unlike in the published code, where it stands before the normalization, which takes away any constant."""
    vae = model()
    with torch.no_grad():
        logits = vae.logits(torch.randn(40, TOPICS).softmax(-1), 40)
    torch.testing.assert_close(logits.mean(0), vae.background)
    assert 0.5 < logits.std(0).mean() < 1.05


@pytest.mark.parametrize(("mix", "weight"), [("mixed", 0), ("published", -20)])
def test_a_documents_vector_is_the_first_layer_and_theta_and_some_of_the_second_layer(mix: str, weight: float) -> None:
    vae = model()
    one = torch.relu(DENSE @ vae.first.weight + vae.first_bias)
    two = torch.relu(vae.second(one))
    torch.testing.assert_close(vae.vectors(BAGS, mix), one + weight * two + vae.mean(two).softmax(-1))


def test_layers_are_mixed_as_by_the_softmax_of_vampires_code() -> None:
    """By cosine, which knows no scale."""
    shares = torch.tensor([1.0, -20.0, 1.0]).softmax(-1)
    torch.testing.assert_close(2 * shares, torch.tensor([1.0, MIXES["mixed"], 1.0]), atol=1e-8, rtol=0)
