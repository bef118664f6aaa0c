"""VAMPIRE's topic model (Gururangan et al., ACL 2019): a variational autoencoder of bags of words.

A bag x goes through two layers, h0 = relu(A0 x), h1 = relu(A1 h0), to the mean and log variance of a normal
distribution; the softmax of a draw from it is the share of each topic, theta; and N(B theta) + b are the words' logits.
N brings what topics add to a word's logit to mean 0 and variance 1 over the documents of a batch, so that topics speak
of many words and not of the few that come often. b is the logarithm of the words' frequencies: what is left to topics
is how a document differs from all. The loss of a document is
-sum_w x_w log softmax(logits)_w + weight KL(N(mean, variance) || N(0, 1)).

The published code normalizes B theta + b, which takes b away again. Here b is added after.

A batch may lie on several ranks. N is the one thing in which its documents meet, so the model asks for sums over ranks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

MIXES = {"mixed": 0.0, "published": -20.0}
"""Weight of h1 in a document's vector, beside h0 and theta, which have 1.

VAMPIRE's code mixes its layers by the softmax of (1, -20, 1): half h0, half theta, and nothing of h1. The script of
kNN-TAPT takes the three numbers for the weights themselves, so that -20 h1 outweighs all else.
"""
NOISE = 1e-3
"""Added to variances where logits are normalized, as in the published code."""
MOST_LOG_VARIANCE = 10.0
"""Bounds z: a document of thousands of odd words would overflow the divergence, or spoil Adam's moments for good."""
Summed = Callable[[Tensor], Tensor]
"""Sums a tensor over the ranks, and its gradient too."""


def alone(own: Tensor) -> Tensor:
    """The sum over one rank."""
    return own


class SparseBags(NamedTuple):
    """Bags of words of n documents."""

    words: Tensor
    """Those of the first document, then of the second, and so on, int64 [m]."""
    counts: Tensor
    """How often each stands there, float32 [m]."""
    starts: Tensor
    """Where each document's words start, int64 [n]."""

    @classmethod
    def of(cls, table: Any, device: torch.device | str = "cpu") -> "SparseBags":
        """The rows of a sparse table, CSR."""
        words, starts = (torch.from_numpy(each.astype("int64")) for each in (table.indices, table.indptr[:-1]))
        return cls(words.to(device), torch.from_numpy(table.data).to(device), starts.to(device))

    @property
    def documents(self) -> Tensor:
        """The number of each word's document [m]."""
        lengths = torch.diff(self.starts, append=self.starts.new_tensor([len(self.words)]))
        return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)


class Draw(NamedTuple):
    """What is drawn at random for n documents."""

    noise: Tensor
    """Draws from a standard normal distribution [n, topics]."""
    kept: Tensor
    """What z is multiplied with, for dropout [n, topics]: 0, or 1 / (1 - dropout)."""

    @classmethod
    def by_seed(cls, seed: int, documents: int, topics: int, dropout: float) -> "Draw":
        """The same on all machines, whatever else they draw."""
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(documents, topics, generator=generator)
        kept = torch.rand(documents, topics, generator=generator) >= dropout
        return cls(noise, kept / (1 - dropout))


class Posterior(NamedTuple):
    """What the encoder makes of some bags."""

    layers: tuple[Tensor, Tensor]
    """h0 and h1 [n, topics]."""
    mean: Tensor
    log_variance: Tensor


class TopicVae(nn.Module):
    """The model.

    Args:
        background: logarithm of each word's frequency [words].
        topics: numbers of every hidden vector.
    """

    background: Tensor

    def __init__(self, background: Tensor, topics: int) -> None:
        super().__init__()
        words = len(background)
        self.first = nn.EmbeddingBag(words, topics, mode="sum")  # a linear layer of counts that are mostly 0
        self.first_bias = nn.Parameter(torch.empty(topics))
        for parameter in self.first.weight, self.first_bias:
            nn.init.uniform_(parameter, -(words**-0.5), words**-0.5)  # as torch begins with linear layers
        self.second = nn.Linear(topics, topics)
        self.mean, self.log_variance = nn.Linear(topics, topics), nn.Linear(topics, topics)
        self.decoder = nn.Linear(topics, words, bias=False)
        self.register_buffer("background", background)

    def posterior(self, bags: SparseBags) -> Posterior:
        """The distribution of each document's z."""
        one = relu(self.first(bags.words, bags.starts, bags.counts) + self.first_bias)
        two = relu(self.second(one))
        return Posterior((one, two), self.mean(two), self.log_variance(two).clamp(max=MOST_LOG_VARIANCE))

    def logits(self, theta: Tensor, documents: int, summed: Summed = alone) -> Tensor:
        """The words' logits [n, words].

        Args:
            theta: shares of topics [n, topics].
            documents: of the batch, on all ranks.
            summed: over ranks.
        """
        added = self.decoder(theta - summed(theta.sum(0)) / documents)
        variance = summed(added.square().sum(0)) / documents
        return torch.addcmul(self.background, added, (variance + NOISE).rsqrt())

    def forward(self, bags: SparseBags, draw: Draw, weight: float, documents: int, summed: Summed = alone) -> Tensor:
        """The sum of the documents' losses, divided by the documents of all ranks.

        Args:
            bags: this rank's part of a batch.
            draw: for these documents.
            weight: of the divergence; it rises from 0 to 1 while training begins.
            documents: of the batch, on all ranks.
            summed: over ranks.
        """
        posterior = self.posterior(bags)
        drawn = posterior.mean + (0.5 * posterior.log_variance).exp() * draw.noise
        logits = self.logits((drawn * draw.kept).softmax(-1), documents, summed)
        lost = divergence(posterior.mean, posterior.log_variance).sum() * weight - log_likelihood(logits, bags)
        return lost / documents

    def vectors(self, bags: SparseBags, mix: str) -> Tensor:
        """The vectors of documents: h0 and theta, and as much of h1 as MIXES says [n, topics]. Nothing is drawn."""
        posterior = self.posterior(bags)
        one, two = posterior.layers
        return one + MIXES[mix] * two + posterior.mean.softmax(-1)

    @property
    def topics(self) -> Tensor:
        """What each topic adds to the logit of each word [topics, words]."""
        return self.decoder.weight.detach().T


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, 1)), summed over dimensions [n]."""
    return 0.5 * (mean**2 + log_variance.exp() - log_variance - 1).sum(-1)


def log_likelihood(logits: Tensor, bags: SparseBags) -> Tensor:
    """The logarithm of the probability of all words of all documents, whose logits are [n, words]."""
    documents = bags.documents
    words = logits[documents, bags.words] * bags.counts
    lengths = bags.counts.new_zeros(len(logits)).index_add(0, documents, bags.counts)
    return words.sum() - (logits.logsumexp(-1) * lengths).sum()
