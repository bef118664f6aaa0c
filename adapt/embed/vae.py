"""VAMPIRE's topic model (Gururangan et al., ACL 2019): a variational autoencoder of bags of words.

A bag x goes through two layers, h0 = relu(A0 x), h1 = relu(A1 h0), to the mean and log variance of a normal
distribution; the softmax of a draw from it is the share of each topic, theta; and B theta + b, normalized over the
batch, gives the words' logits. b is the logarithm of the words' frequencies, so topics are what differs from them. The
loss of a document is -sum_w x_w log softmax(logits)_w + weight KL(N(mean, variance) || N(0, 1)).
"""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.functional import log_softmax, relu

ENC_1 = -20.0
"""Weight of the second layer in a document's vector; the first one and theta have 1."""
NOISE = 1e-3
"""Added to variances where logits are normalized, as in the published code."""


class TopicPass(NamedTuple):
    """What becomes of some bags."""

    layers: tuple[Tensor, Tensor]
    """h0 and h1 [n, topics]."""
    mean: Tensor
    log_variance: Tensor
    theta: Tensor
    logits: Tensor
    """[n, words]"""


class TopicVae(nn.Module):
    """The model.

    Args:
        background: logarithm of each word's frequency [words].
        topics: numbers of every hidden vector.
        dropout: of z.
    """

    background: Tensor

    def __init__(self, background: Tensor, topics: int, dropout: float) -> None:
        super().__init__()
        words = len(background)
        self.first, self.second = nn.Linear(words, topics), nn.Linear(topics, topics)
        self.mean, self.log_variance = nn.Linear(topics, topics), nn.Linear(topics, topics)
        self.decoder = nn.Linear(topics, words, bias=False)
        self.normalize = nn.BatchNorm1d(words, eps=NOISE, momentum=NOISE)
        self.normalize.weight.requires_grad = False  # the scale of the logits is that of the decoder
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("background", background)

    def forward(self, bags: Tensor, noise: Tensor | None = None) -> TopicPass:
        """The pass of bags [n, words].

        Args:
            bags: counts.
            noise: of a standard normal distribution [n, topics], to draw z; without it z is the mean.
        """
        one = relu(self.first(bags))
        two = relu(self.second(one))
        mean, log_variance = self.mean(two), self.log_variance(two)
        drawn = mean if noise is None else mean + (0.5 * log_variance).exp() * noise
        theta = self.dropout(drawn).softmax(-1)
        logits = self.normalize(self.decoder(theta) + self.background)
        return TopicPass((one, two), mean, log_variance, theta, logits)

    def vectors(self, bags: Tensor) -> Tensor:
        """The vectors of documents: h0 - 20 h1 + theta [n, topics], as kNN-TAPT compares them."""
        passed: TopicPass = self(bags)
        one, two = passed.layers
        return one + ENC_1 * two + passed.theta

    @property
    def topics(self) -> Tensor:
        """What each topic adds to the logit of each word [topics, words]."""
        return self.decoder.weight.detach().T


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, 1)), summed over dimensions [n]."""
    return 0.5 * (mean**2 + log_variance.exp() - log_variance - 1).sum(-1)


def topic_loss(passed: TopicPass, bags: Tensor, weight: float) -> Tensor:
    """The mean loss of documents.

    Args:
        passed: what became of the bags.
        bags: counts [n, words].
        weight: of the divergence; it rises from 0 to 1 while training begins.
    """
    likelihood = (bags * log_softmax(passed.logits, -1)).sum(-1)
    return (weight * divergence(passed.mean, passed.log_variance) - likelihood).mean()
