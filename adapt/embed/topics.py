"""Training of the topic model: the steps of a rank, the epoch whose topics are best, and what a run resumes from.

Ray is not known here. Every rank holds the whole model and works on its share of each batch; noise and dropout are
drawn for the batch as a whole, by seed, epoch and number. So results do not depend on the number of ranks, but for
rounding, and a run that resumes has nothing to restore but weights and optimizer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from adapt.embed.npmi import mean_npmi
from adapt.embed.vae import Draw, SparseBags, TopicVae, alone
from adapt.errors import TrainingError
from adapt.train.checkpoints.retain import STATE_FILE
from adapt.train.tracking.progress import Progress

if TYPE_CHECKING:
    from adapt.embed.vampire import VampireOptions

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
