"""Defines and trains VAMPIRE's topic model (Gururangan et al., ACL 2019), a variational autoencoder of bags of words.

The encoder maps a bag of words x through two layers, h0 = relu(A0 x) and h1 = relu(A1 h0), to the mean and log variance
of a normal distribution. A number z is drawn from this distribution for each topic, and theta = softmax(z) is the share
of each topic in the document. The logits of the words are N(B theta) + b. N is a batch normalization: for each word, it
scales the topics' contribution to the logit to mean 0 and variance 1 over the documents of a batch. Without N, topics
would consist of the most frequent words only. b is the logarithm of the words' frequencies, so topics describe how a
document differs from the average document. The loss of a document is -sum_w x_w log softmax(logits)_w + weight
KL(N(mean, variance) || N(0, 1)).

The published code normalizes B theta + b, which removes b again. Here b is added after the normalization.

Training ends when the topics' coherence (NPMI) no longer rises. The weights of the best epoch are kept. This module
does not use Ray. Noise and dropout of a batch depend only on the seed, the epoch and the number of the batch, so a
checkpoint needs no state of random generators.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import combinations
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import relu

from adapt.embed.bags import VampireOptions
from adapt.runner.files import file_aside
from adapt.support.errors import TrainingError
from adapt.train import metric_trackers, training_run

MIXES = {"mixed": 0.0, "published": -20.0}
"""Weight of h1 in a document's vector, keyed by the option `mix`. h0 and theta have the weight 1.

VAMPIRE's code adds the layers with the softmax of (1, -20, 1) as weights: half h0, half theta, and almost no h1
(`mixed`). The script of kNN-TAPT uses the numbers 1, -20 and 1 as weights, so that -20 h1 dominates (`published`).
"""
NOISE = 1e-3
"""Constant that is added to variances when logits are normalized, as in the published code."""
MOST_LOG_VARIANCE = 10.0
"""Maximum log variance in the encoder's output. Without this limit, the divergence of a document with thousands of
unusual words would overflow, or would distort Adam's moment estimates for the rest of the training run."""


class SparseBags(NamedTuple):
    """Bags of words of n documents, concatenated in flat tensors."""

    words: Tensor
    """Word ids of all documents, one document after another, int64 [m]."""
    counts: Tensor
    """Number of occurrences of each word in its document, float32 [m]."""
    starts: Tensor
    """Offset of each document's first word, int64 [n]."""

    @classmethod
    def of(cls, table: Any, device: torch.device | str = "cpu") -> "SparseBags":
        """Converts a sparse CSR table of word counts, in which each row is a document."""
        words, starts = (torch.from_numpy(part.astype("int64")) for part in (table.indices, table.indptr[:-1]))
        return cls(words.to(device), torch.from_numpy(table.data).to(device), starts.to(device))

    @property
    def documents(self) -> Tensor:
        """For each entry of `words`, the index of its document [m]."""
        lengths = torch.diff(self.starts, append=self.starts.new_tensor([len(self.words)]))
        return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)


class Draw(NamedTuple):
    """Random numbers for one training step on a batch of n documents."""

    noise: Tensor
    """Samples from a standard normal distribution [n, topics]."""
    kept: Tensor
    """Dropout factors of z [n, topics]: 0, or 1 / (1 - dropout)."""

    @classmethod
    def by_seed(cls, seed: int, documents: int, topics: int, dropout: float) -> "Draw":
        """Draws the numbers on the CPU from a seed, so that they are the same on all machines."""
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(documents, topics, generator=generator)
        kept = torch.rand(documents, topics, generator=generator) >= dropout
        return cls(noise, kept / (1 - dropout))


class Posterior(NamedTuple):
    """Output of the encoder: its hidden layers, and the mean and log variance of z."""

    layers: tuple[Tensor, Tensor]
    """Hidden layers h0 and h1 of the n documents [n, topics]."""
    mean: Tensor
    log_variance: Tensor


class TopicVae(nn.Module):
    """VAMPIRE's topic model. Its equations are in the docstring of this module.

    Args:
      background: logarithm of each word's frequency [words].
      topics: number of topics, which is also the width of all hidden layers.
    """

    background: Tensor

    def __init__(self, background: Tensor, topics: int) -> None:
        super().__init__()
        words = len(background)
        # computes the same as a linear layer, from sparse word counts
        self.first = nn.EmbeddingBag(words, topics, mode="sum")
        self.first_bias = nn.Parameter(torch.empty(topics))
        for parameter in self.first.weight, self.first_bias:
            nn.init.uniform_(parameter, -(words**-0.5), words**-0.5)  # as in nn.Linear
        self.second = nn.Linear(topics, topics)
        self.mean, self.log_variance = nn.Linear(topics, topics), nn.Linear(topics, topics)
        self.decoder = nn.Linear(topics, words, bias=False)
        self.register_buffer("background", background)

    def posterior(self, bags: SparseBags) -> Posterior:
        """Returns the distribution of z for each document, computed by the encoder."""
        one = relu(self.first(bags.words, bags.starts, bags.counts) + self.first_bias)
        two = relu(self.second(one))
        return Posterior((one, two), self.mean(two), self.log_variance(two).clamp(max=MOST_LOG_VARIANCE))

    def logits(self, theta: Tensor) -> Tensor:
        """Returns the words' logits [n, words] for the documents of a batch, from their topic shares [n, topics]."""
        added = self.decoder(theta - theta.sum(0) / len(theta))
        variance = added.square().sum(0) / len(theta)
        return torch.addcmul(self.background, added, (variance + NOISE).rsqrt())

    def forward(self, bags: SparseBags, draw: Draw, weight: float) -> Tensor:
        """Returns the mean loss of the documents of a batch.

        `weight` is the weight of the divergence, which rises from 0 to 1 at the start of training.
        """
        posterior = self.posterior(bags)
        drawn = posterior.mean + (0.5 * posterior.log_variance).exp() * draw.noise
        logits = self.logits((drawn * draw.kept).softmax(-1))
        lost = divergence(posterior.mean, posterior.log_variance).sum() * weight - log_likelihood(logits, bags)
        return lost / len(logits)

    def vectors(self, bags: SparseBags, mix: str) -> Tensor:
        """Returns the documents' vectors [n, topics].

        A vector is h0 + MIXES[mix] h1 + theta. Here theta is the softmax of the mean of z, without random noise.
        """
        posterior = self.posterior(bags)
        one, two = posterior.layers
        return one + MIXES[mix] * two + posterior.mean.softmax(-1)

    @property
    def topics(self) -> Tensor:
        """Contribution of each topic to the logit of each word [topics, words]."""
        return self.decoder.weight.detach().T


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Returns KL(N(mean, variance) || N(0, 1)), summed over dimensions [n]."""
    return 0.5 * (mean**2 + log_variance.exp() - log_variance - 1).sum(-1)


def log_likelihood(logits: Tensor, bags: SparseBags) -> Tensor:
    """Returns the summed log probability of all words of all documents. `logits` is [n, words]."""
    documents = bags.documents
    words = logits[documents, bags.words] * bags.counts
    lengths = bags.counts.new_zeros(len(logits)).index_add(0, documents, bags.counts)
    return words.sum() - (logits.logsumexp(-1) * lengths).sum()


REPORT_S = 1.0
"""Minimum time between two progress reports [s]."""


@dataclass
class BestEpoch:
    """The epoch with the most coherent topics so far."""

    epoch: int = 0
    npmi: float = -inf
    weights: dict[str, Tensor] = field(default_factory=dict)


class TopicTraining:
    """Trains a topic model. The state of an unfinished training run can be saved and restored.

    `counts` are word counts, sparse float32 [documents, words]. No document is empty.
    """

    def __init__(self, counts: Any, options: VampireOptions, seed: int, device: torch.device) -> None:
        self.counts, self.options, self.seed, self.device = counts.tocsr(), options, seed, device
        self.step, self.seconds, self.best = 0, 0.0, BestEpoch()
        self._by_word = counts.tocsc()
        frequency = np.asarray(counts.sum(0), np.float64).ravel()
        background = torch.from_numpy(np.log(frequency / frequency.sum()).astype(np.float32))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = TopicVae(background, options.topics).to(device)
        self._adam = torch.optim.Adam(self.model.parameters(), options.learning_rate, fused=True)

    @property
    def steps_an_epoch(self) -> int:
        """Number of batches per epoch.

        Each batch has at least two documents, because the normalization N computes a variance over the batch.
        """
        texts = int(self.counts.shape[0])
        return max(1, min(-(-texts // self.options.batch_size), texts // 2))

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return self.step // self.steps_an_epoch

    def run(self, report: Callable[[dict[str, Any]], None], file: Path) -> None:
        """Trains until the coherence has not reached a new maximum for `patience` epochs, or until the last epoch.

        Calls `report` with metrics about every second and after each epoch. Writes the training state to `file`
        after each epoch.

        Raises:
            TrainingError: the loss is not finite.
        """
        while self.epoch < self.options.epochs and self.epoch - self.best.epoch < self.options.patience:
            loss = self._train(self.epoch + 1, report)
            npmi = self._look()
            report({**self._known(), "epoch": self.epoch, "loss": loss, "npmi": npmi, "best_npmi": self.best.npmi})
            self.save(file)

    def _train(self, epoch: int, report: Callable[[dict[str, Any]], None]) -> float:
        """Trains for one epoch, with the documents in a random order that depends on the seed and the epoch's number.

        Returns the mean loss of the documents.
        """
        total, documents, began, before = 0.0, 0, time.monotonic(), self.seconds
        reported = began
        for number, chosen in enumerate(self._batches(epoch)):
            self.step += 1
            total += self._step(chosen, step_seed(self.seed, epoch, number)) * len(chosen)
            documents += len(chosen)
            self.seconds = before + time.monotonic() - began
            if time.monotonic() - reported > REPORT_S:
                reported = time.monotonic()
                report({**self._known(), "loss": total / documents, "texts_per_s": documents / (reported - began)})
        return total / documents

    def _step(self, chosen: np.ndarray, seed: int) -> float:
        """Takes an optimizer step on a batch. Returns the mean loss of the batch's documents."""
        options = self.options
        drawn = Draw.by_seed(seed, len(chosen), options.topics, options.dropout)
        bags = SparseBags.of(self.counts[chosen], self.device)
        weight = min(1.0, self.step / options.annealing_steps)
        loss = self.model(bags, Draw(*(numbers.to(self.device) for numbers in drawn)), weight)
        value = float(loss.item())
        if not isfinite(value):
            raise TrainingError(
                f"the loss of the embedder vampire is {value} at step {self.step}", "lower vampire.learning_rate"
            )
        self._adam.zero_grad()
        loss.backward()
        self._adam.step()
        return value

    def _batches(self, epoch: int) -> Iterator[np.ndarray]:
        """Yields the indices of the documents of each batch. The sizes of batches differ by at most one document."""
        order = np.random.default_rng((self.seed % 2**63, epoch)).permutation(self.counts.shape[0])
        yield from np.array_split(order, self.steps_an_epoch)

    def _look(self) -> float:
        """Measures the topics' coherence after an epoch. Stores the weights if the coherence is the highest so far."""
        npmi = mean_npmi(self.model.topics.cpu().numpy(), self._by_word)
        if npmi > self.best.npmi:
            weights = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}
            self.best = BestEpoch(self.epoch, npmi, weights)
        return npmi

    def _known(self) -> dict[str, Any]:
        """Returns the number of finished steps, and the total steps and remaining time if no epoch is left out."""
        steps = self.options.epochs * self.steps_an_epoch
        return {"step": self.step, "steps": steps, "eta_s": (steps - self.step) * self.seconds / max(self.step, 1)}

    def save(self, file: Path) -> None:
        """Writes the training state at the end of an epoch."""
        state = {"model": self.model.state_dict(), "adam": self._adam.state_dict(), "best": asdict(self.best)}
        with file_aside(file) as aside:
            torch.save({**state, "step": self.step, "seconds": self.seconds}, aside)

    def load(self, file: Path) -> None:
        """Restores the training state from a file that `save` wrote."""
        state = torch.load(file, map_location="cpu", weights_only=True)
        self.model.load_state_dict(state["model"])
        self._adam.load_state_dict(state["adam"])
        self.best = BestEpoch(**state["best"])
        self.step, self.seconds = state["step"], state["seconds"]


def step_seed(seed: int, epoch: int, number: int) -> int:
    """Returns the seed of a training step. No two steps have the same seed."""
    return int(np.random.SeedSequence((seed % 2**63, epoch, number)).generate_state(1, np.uint64)[0] >> np.uint64(1))


TOP_WORDS_OF_TOPIC = 10


def mean_npmi(topics: np.ndarray, counts: Any, most: int = TOP_WORDS_OF_TOPIC) -> float:
    """Returns the mean normalized pointwise mutual information (Bouma 2009) of the pairs of each topic's top words.

    NPMI(v, w) = log(p(v, w) / (p(v) p(w))) / -log p(v, w), where p is a share of documents. For pairs that never occur
    together, NPMI is set to 0, as in VAMPIRE's code, although the limit of the formula is -1. It is also set to 0 for
    pairs that occur together in every document.

    Args:
        topics: weights of words in topics [topics, words].
        counts: word counts of documents, sparse [documents, words].
        most: number of top words per topic.
    """
    first = np.argsort(-topics, axis=1, kind="stable")[:, :most]
    words, indices = np.unique(first, return_inverse=True)
    present = (counts[:, words] > 0).astype(np.float64)
    together = np.asarray((present.T @ present).todense())
    share, joint = np.diag(together) / counts.shape[0], together / counts.shape[0]
    usual = np.outer(share, share)
    defined = (joint > 0) & (joint < 1)
    npmi = np.zeros_like(joint)
    npmi[defined] = np.log(joint[defined] / usual[defined]) / -np.log(joint[defined])
    pairs = np.array(list(combinations(range(first.shape[1]), 2)))
    of_topics = indices.reshape(first.shape)
    return float(npmi[of_topics[:, pairs[:, 0]], of_topics[:, pairs[:, 1]]].mean())


WEIGHTS_FILE = "vampire.safetensors"
STATE_FILE = "training.pt"
"""Name of the file with the training state. The file is written after each epoch and removed when training has
ended."""
EMBEDDED_AT_ONCE = 512


def train_topics(counts: Any, options: VampireOptions, seed: int, folder: Path) -> dict[str, float]:
    """Trains a topic model and writes the weights of the best epoch. Resumes an interrupted training run.

    Returns the number of epochs, the number of the best epoch, and its NPMI.

    Raises:
        TrainingError: the loss is not finite.
    """
    training, state = TopicTraining(counts, options, seed, _device()), folder / STATE_FILE
    if state.exists():
        training.load(state)
    metrics = metric_trackers.File(folder / training_run.METRICS_FILE, training.step)
    try:
        training.run(lambda known: metrics.log(known, known["step"]), state)
    finally:
        metrics.close(failed=False)
    best = training.best
    with file_aside(folder / WEIGHTS_FILE) as aside:
        save_file({name: value.contiguous() for name, value in best.weights.items()}, aside)
    state.unlink(missing_ok=True)
    return {"epochs": training.epoch, "best_epoch": best.epoch, "npmi": best.npmi}


class TopicVectors:
    """Computes the vectors of documents with a trained topic model.

    `folder` is the folder that `train_topics` wrote.
    """

    def __init__(self, folder: Path, options: VampireOptions) -> None:
        weights = load_file(folder / WEIGHTS_FILE)
        self._options, self._device = options, _device()
        self._model = TopicVae(weights["background"], options.topics)
        self._model.load_state_dict(weights)
        self._model.to(self._device).eval()

    def __call__(self, counts: Any) -> np.ndarray:
        """Returns the vectors of documents, float32 [n, topics], from their word counts, sparse [n, words]."""
        parts = [np.zeros((0, self._options.topics), np.float32)]
        with torch.inference_mode():
            for start in range(0, counts.shape[0], EMBEDDED_AT_ONCE):
                bags = SparseBags.of(counts[start : start + EMBEDDED_AT_ONCE], self._device)
                parts.append(self._model.vectors(bags, self._options.mix).cpu().numpy())
        return np.concatenate(parts)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
