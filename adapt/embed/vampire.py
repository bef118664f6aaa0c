"""Embedder `vampire`: what kNN-TAPT compares documents by (Don't Stop Pretraining, section 5.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adapt.config.fields import PositiveFloat, PositiveInt, ProperFraction
from adapt.console import log
from adapt.embed.bags import Bags
from adapt.embed.base import EmbeddedTexts, Embedder
from adapt.embed.npmi import mean_npmi
from adapt.errors import TrainingError

if TYPE_CHECKING:
    import torch

    from adapt.embed.vae import TopicVae

WEIGHTS_FILE = "vampire.safetensors"
EMBEDDED_AT_ONCE = 512


@dataclass(frozen=True)
class VampireOptions:
    """The topic model and its training. Defaults are those of the published code."""

    topics: PositiveInt = 81
    """Topics, and numbers of a vector."""
    words: PositiveInt = 30_000
    """The most frequent words of the sample are counted, and no others."""
    least_documents: PositiveInt = 3
    """Texts that a word must stand in."""
    dropout: ProperFraction = 0.49
    """Dropout of the topics' logits."""
    learning_rate: PositiveFloat = 1e-3
    """Adam's."""
    batch_size: PositiveInt = 64
    """Texts of a step."""
    epochs: PositiveInt = 50
    """Most passes over the sample."""
    patience: PositiveInt = 5
    """Training ends after so many epochs without topics that are more coherent (NPMI). The best are kept."""
    annealing_steps: PositiveInt = 1000
    """Steps over which the weight of the divergence rises from 0 to 1."""
    sample_documents: PositiveInt = 100_000
    """Texts of each source that the model is trained on."""


class Vampire(Embedder):
    """Trains the topic model on a sample, and embeds by its layers."""

    Options = VampireOptions
    learns = True
    packages = ("scikit-learn",)

    def learn(self, texts: Sequence[str], folder: Path) -> dict[str, float]:
        """Trains until topics become no more coherent.

        Every step draws noise of its own, by seed, epoch and step.

        Raises:
            DataError: there are hardly any words.
            TrainingError: the loss is not finite.
        """
        import torch
        from safetensors.torch import save_file

        options = self.options
        bags, counts = Bags.learnt(texts, options.words, min(options.least_documents, len(texts)))
        counts = counts[np.diff(counts.indptr) > 0]  # a text of unknown words says nothing
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = self._untrained(counts).to(device)
        adam = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], options.learning_rate)
        best, best_epoch, weights, steps, epoch = -np.inf, 0, {}, 0, 0
        for epoch in range(1, options.epochs + 1):
            steps = self._epoch(model, adam, counts, epoch, steps, device)
            npmi = mean_npmi(model.topics.cpu().numpy(), counts)
            log(f"vampire: epoch {epoch}, NPMI {npmi:.4f}")
            if npmi > best:
                best, best_epoch = npmi, epoch
                weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
            elif epoch - best_epoch >= options.patience:
                break
        bags.save(folder)
        save_file({name: value.contiguous() for name, value in weights.items()}, folder / WEIGHTS_FILE)
        return {"words": len(bags.words), "epochs": epoch, "best_epoch": best_epoch, "npmi": best}

    def load(self, folder: Path | None) -> None:
        """Reads what was learnt."""
        import torch
        from safetensors.torch import load_file

        from adapt.embed.vae import TopicVae

        assert folder is not None
        self._bags, weights = Bags.load(folder), load_file(folder / WEIGHTS_FILE)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = TopicVae(weights["background"], self.options.topics, self.options.dropout)
        self._model.load_state_dict(weights)
        self._model.to(self._device).eval()

    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """By the mean of each text's distribution: nothing is drawn."""
        import torch

        counts, unknown = self._bags.counts(texts)
        parts = [np.zeros((0, self.options.topics), np.float32)]
        with torch.inference_mode():
            for start in range(0, len(texts), EMBEDDED_AT_ONCE):
                dense = torch.from_numpy(counts[start : start + EMBEDDED_AT_ONCE].toarray())
                parts.append(self._model.vectors(dense.to(self._device)).cpu().numpy())
        return EmbeddedTexts(np.concatenate(parts), len(texts), unknown)

    def _untrained(self, counts: Any) -> TopicVae:
        import torch

        from adapt.embed.vae import TopicVae

        frequency = np.asarray(counts.sum(0), np.float64).ravel()
        background = torch.from_numpy(np.log(frequency / frequency.sum()).astype(np.float32))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return TopicVae(background, self.options.topics, self.options.dropout)

    def _epoch(
        self, model: TopicVae, adam: torch.optim.Optimizer, counts: Any, epoch: int, steps: int, device: torch.device
    ) -> int:
        """A pass over all texts in an order of its own; returns the steps so far."""
        import torch

        from adapt.embed.vae import topic_loss

        model.train()
        for number, chosen in enumerate(self._batches(counts.shape[0], epoch)):
            steps += 1
            dense = torch.from_numpy(counts[chosen].toarray()).to(device)
            with torch.random.fork_rng():
                torch.manual_seed(_address(self.seed, epoch, number))  # for dropout too
                noise = torch.randn(len(dense), self.options.topics).to(device)
                passed = model(dense, noise)
            loss = topic_loss(passed, dense, min(1.0, steps / self.options.annealing_steps))
            value = loss.item()
            if not isfinite(value):
                raise TrainingError(f"the loss of vampire is {value} at step {steps}", "lower its learning_rate")
            adam.zero_grad()
            loss.backward()
            adam.step()
        model.eval()
        return steps

    def _batches(self, texts: int, epoch: int) -> Iterator[np.ndarray]:
        """Numbers of texts, in batches of at least two, which normalization needs."""
        order = np.random.default_rng((self.seed % 2**63, epoch)).permutation(texts)
        yield from np.array_split(order, max(1, min(-(-texts // self.options.batch_size), texts // 2)))


def _address(seed: int, epoch: int, number: int) -> int:
    """A seed for each step."""
    return int(np.random.SeedSequence((seed % 2**63, epoch, number)).generate_state(1, np.uint64)[0] >> np.uint64(1))
