"""The topic model's formulas, against torch's own."""

import torch
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy

from adapt.embed.vae import TopicVae, divergence, topic_loss

WORDS, TOPICS = 12, 5


def model() -> TopicVae:
    torch.manual_seed(0)
    return TopicVae(torch.randn(WORDS).log_softmax(-1), TOPICS, 0.49).eval()


def test_the_divergence_is_that_of_normal_distributions() -> None:
    mean, log_variance = torch.randn(7, TOPICS), torch.randn(7, TOPICS)
    ours = divergence(mean, log_variance)
    expected = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0)).sum(-1)
    torch.testing.assert_close(ours, expected)


def test_the_loss_is_the_cross_entropy_of_every_word_and_the_weighed_divergence() -> None:
    bags = torch.poisson(torch.full((4, WORDS), 0.7))
    passed = model()(bags, torch.randn(4, TOPICS))
    words = [cross_entropy(passed.logits[n], torch.tensor(w)) * bags[n, w] for n in range(4) for w in range(WORDS)]
    expected = (sum(words) + 0.3 * divergence(passed.mean, passed.log_variance).sum()) / 4
    torch.testing.assert_close(topic_loss(passed, bags, 0.3), expected)


def test_noise_is_added_as_wide_as_the_distribution_is_and_theta_is_a_share() -> None:
    vae, bags, noise = model(), torch.ones(2, WORDS), torch.randn(2, TOPICS)
    passed = vae(bags, noise)
    expected = (passed.mean + passed.log_variance.exp().sqrt() * noise).softmax(-1)
    torch.testing.assert_close(passed.theta, expected)
    torch.testing.assert_close(passed.theta.sum(-1), torch.ones(2))
    torch.testing.assert_close(vae(bags).theta, passed.mean.softmax(-1))


def test_the_background_are_the_logits_of_a_document_without_topics() -> None:
    vae = model()
    with torch.no_grad():
        vae.decoder.weight.zero_()
        probabilities = vae(torch.ones(1, WORDS)).logits.softmax(-1)
    torch.testing.assert_close(probabilities[0].log(), vae.background, atol=2e-2, rtol=0)


def test_a_documents_vector_is_the_first_layer_less_twenty_times_the_second_and_theta() -> None:
    vae, bags = model(), torch.poisson(torch.full((3, WORDS), 1.0))
    one = torch.relu(bags @ vae.first.weight.T + vae.first.bias)
    two = torch.relu(one @ vae.second.weight.T + vae.second.bias)
    theta = (two @ vae.mean.weight.T + vae.mean.bias).softmax(-1)
    torch.testing.assert_close(vae.vectors(bags), one - 20 * two + theta)
