"""VAMPIRE's topic model (Gururangan et al., ACL 2019), a variational autoencoder of bags of words, and its training.

A bag x goes through two layers, h0 = relu(A0 x), h1 = relu(A1 h0), to the mean and log variance of a normal
distribution. The softmax of a draw from it is the share of each topic, theta, and N(B theta) + b are the logits of the
words. N brings what topics add to a word's logit to mean 0 and variance 1 over the documents of a batch, so that topics
have many words and not only the most frequent ones. b is the logarithm of the words' frequencies, so topics describe
how a document differs from all. The loss of a document is
-sum_w x_w log softmax(logits)_w + weight KL(N(mean, variance) || N(0, 1)).

The published code normalizes B theta + b, which takes b away again. Here b is added after.

Training ends when topics become no more coherent (NPMI), and the best epoch is kept. This module does not know Ray.
Every rank holds the whole model and works on its share of each batch. Only N needs sums over ranks. Noise and dropout
are drawn for the batch as a whole, by seed, epoch and number. So results do not depend on the number of ranks, except
for rounding, and a resumed run restores only weights and optimizer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import relu

from adapt.support.errors import TrainingError
from adapt.train.checkpoints.retain import STATE_FILE
from adapt.train.training_run import Progress

if TYPE_CHECKING:
    from adapt.embed.vampire import VampireOptions


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
    def of(cls, table: Any, device: torch.device | str = "cpu") -> SparseBags:
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
    def by_seed(cls, seed: int, documents: int, topics: int, dropout: float) -> Draw:
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


TENSORS_FILE = "topics.pt"
REPORT_S = 1.0
"""Between two reports, at least."""


@dataclass
class BestEpoch:
    """The epoch whose topics are the most coherent so far."""

    epoch: int = 0
    npmi: float = -inf
    weights: dict[str, Tensor] = field(default_factory=dict)


class TopicTraining:
    """A rank's training.

    Args:
        counts: of words, sparse float32 [documents, words], the same on all ranks; no document is empty.
        options: of the embedder.
        seed: of the job.
        device: of this rank.
    """

    def __init__(self, counts: Any, options: VampireOptions, seed: int, device: torch.device) -> None:
        self.counts, self.options, self.seed, self.device = counts.tocsr(), options, seed, device
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.best = BestEpoch()
        self._by_word = counts.tocsc()
        self._summed = _over_ranks if self.world > 1 else alone
        frequency = np.asarray(counts.sum(0), np.float64).ravel()
        background = torch.from_numpy(np.log(frequency / frequency.sum()).astype(np.float32))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = TopicVae(background, options.topics).to(device)
        self._adam = torch.optim.Adam(self.model.parameters(), options.learning_rate, fused=True)

    @property
    def steps_an_epoch(self) -> int:
        """Batches have two documents or more, which normalization needs."""
        texts = int(self.counts.shape[0])
        return max(1, min(-(-texts // self.options.batch_size), texts // 2))

    @property
    def steps(self) -> int:
        """Most steps of the run."""
        return self.options.epochs * self.steps_an_epoch

    def run(
        self, progress: Progress, report: Callable[[dict[str, Any]], None], save: Callable[[Progress], None]
    ) -> None:
        """Trains until coherence has not risen for `patience` epochs, or to the last one.

        Args:
            progress: where to start, at the beginning of an epoch; updated.
            report: gets metrics about every second, and after each epoch.
            save: is called by all ranks after each epoch.

        Raises:
            TrainingError: the loss is not finite.
        """
        epoch = progress.step // self.steps_an_epoch
        while epoch < self.options.epochs and epoch - self.best.epoch < self.options.patience:
            epoch += 1
            loss = self._train(epoch, progress, report)
            npmi = self._look(epoch)
            report({**self._known(progress), "epoch": epoch, "loss": loss, "npmi": npmi, "best_npmi": self.best.npmi})
            save(progress)

    def _train(self, epoch: int, progress: Progress, report: Callable[[dict[str, Any]], None]) -> float:
        """Passes over all documents in an order of its own. Returns their mean loss."""
        total, documents, began, before = 0.0, 0, time.monotonic(), progress.seconds
        told = began
        for number, chosen in enumerate(self._batches(epoch)):
            progress.step += 1
            total += self._step(chosen, step_seed(self.seed, epoch, number), progress.step) * len(chosen)
            documents += len(chosen)
            progress.seconds = before + time.monotonic() - began
            if time.monotonic() - told > REPORT_S:
                told = time.monotonic()
                mean, speed = total * self.world / documents, documents / (told - began)
                report({**self._known(progress), "epoch": epoch, "loss": mean, "texts_per_s": speed})
        whole = torch.tensor(total / documents, dtype=torch.float64, device=self.device)
        return float(self._summed(whole))

    def _step(self, chosen: np.ndarray, seed: int, step: int) -> float:
        """An optimizer step over a batch. Returns this rank's part of its mean loss."""
        own, options = slice(self.rank, None, self.world), self.options
        drawn = Draw.by_seed(seed, len(chosen), options.topics, options.dropout)
        draw = Draw(*(each[own].to(self.device) for each in drawn))
        bags = SparseBags.of(self.counts[chosen[own]], self.device)
        weight = min(1.0, step / options.annealing_steps)
        loss = self.model(bags, draw, weight, len(chosen), self._summed)
        value = float(loss.item())
        if not isfinite(value):
            raise TrainingError(f"the loss of vampire is {value} at step {step}", "lower its learning_rate")
        self._adam.zero_grad()
        loss.backward()
        if self.world > 1:
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
        self._adam.step()
        return value

    def _batches(self, epoch: int) -> Iterator[np.ndarray]:
        """Numbers of documents, in batches of about one size."""
        order = np.random.default_rng((self.seed % 2**63, epoch)).permutation(self.counts.shape[0])
        yield from np.array_split(order, self.steps_an_epoch)

    def _look(self, epoch: int) -> float:
        """How coherent topics are after an epoch. Rank 0 looks, so that all decide alike."""
        found = [mean_npmi(self.model.topics.cpu().numpy(), self._by_word) if self.rank == 0 else 0.0]
        if self.world > 1:
            dist.broadcast_object_list(found)
        if found[0] > self.best.npmi:
            weights = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}
            self.best = BestEpoch(epoch, found[0], weights)
        return found[0]

    def _known(self, progress: Progress) -> dict[str, Any]:
        """Where the run is, and how long it may last if coherence goes on rising."""
        left = self.steps - progress.step
        return {"step": progress.step, "steps": self.steps, "eta_s": left * progress.seconds / max(progress.step, 1)}

    def save(self, folder: Path, progress: dict[str, Any]) -> None:
        """Writes the state, which is the same on all ranks: rank 0 does."""
        if self.rank == 0:
            state = {"model": self.model.state_dict(), "adam": self._adam.state_dict(), "best": self.best.weights}
            torch.save(state, folder / TENSORS_FILE)
            known = {"progress": progress, "best_epoch": self.best.epoch, "best_npmi": self.best.npmi}
            (folder / STATE_FILE).write_text(json.dumps(known))

    def load(self, folder: Path) -> dict[str, Any]:
        """Restores what `save` wrote, with any number of ranks."""
        state = torch.load(folder / TENSORS_FILE, map_location="cpu", weights_only=True)
        known = json.loads((folder / STATE_FILE).read_text())
        self.model.load_state_dict(state["model"])
        self._adam.load_state_dict(state["adam"])
        self.best = BestEpoch(known["best_epoch"], known["best_npmi"], state["best"])
        return dict(known["progress"])


def _over_ranks(own: Tensor) -> Tensor:
    """The sum over all ranks, through which gradients pass."""
    from torch.distributed.nn.functional import all_reduce

    found: Tensor = all_reduce(own)
    return found


def step_seed(seed: int, epoch: int, number: int) -> int:
    """A seed for each step, so that no two batches have the same noise."""
    return int(np.random.SeedSequence((seed % 2**63, epoch, number)).generate_state(1, np.uint64)[0] >> np.uint64(1))


TOP_WORDS_OF_TOPIC = 10


def mean_npmi(topics: np.ndarray, counts: Any, most: int = TOP_WORDS_OF_TOPIC) -> float:
    """The mean normalized pointwise mutual information (Bouma 2009) of the pairs of each topic's first words.

    NPMI(v, w) = log(p(v, w) / (p(v) p(w))) / -log p(v, w), p being shares of documents. Pairs that never meet count 0,
    as in VAMPIRE's code (the limit is -1), and so do pairs that stand in every document.

    Args:
        topics: weights [topics, words].
        counts: of the words of documents, sparse [documents, words].
        most: first words of a topic.
    """
    first = np.argsort(-topics, axis=1, kind="stable")[:, :most]
    words, places = np.unique(first, return_inverse=True)
    present = (counts[:, words] > 0).astype(np.float64)
    together = np.asarray((present.T @ present).todense())
    share, joint = np.diag(together) / counts.shape[0], together / counts.shape[0]
    usual = np.outer(share, share)
    told = (joint > 0) & (joint < 1)
    npmi = np.zeros_like(joint)
    npmi[told] = np.log(joint[told] / usual[told]) / -np.log(joint[told])
    pairs = np.array(list(combinations(range(first.shape[1]), 2)))
    of_topics = places.reshape(first.shape)
    return float(npmi[of_topics[:, pairs[:, 0]], of_topics[:, pairs[:, 1]]].mean())
