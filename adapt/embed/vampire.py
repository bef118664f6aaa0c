"""Embedder `vampire`: what kNN-TAPT compares documents by (Don't Stop Pretraining, section 5.1).

The topic model is trained with Ray Train: each rank trains, saves every epoch, and resumes an earlier run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from adapt.config import ResourcesConfig, fewest_of, most_of
from adapt.config.fields import PositiveFloat, PositiveInt, ProperFraction
from adapt.embed.embedder import EmbeddedTexts, Embedder
from adapt.embed.tfidf import Bags
from adapt.ray.runtime import hide_unreserved_gpus
from adapt.runner.files import file_aside, share_with_group, write_atomically
from adapt.train.failure import portable_errors
from adapt.train.metric_trackers import File
from adapt.train.ray_train import RankedRun, on_all_ranks
from adapt.train.training_run import CHECKPOINTS, METRICS_FILE, PROGRESS_FILE
from adapt.train.worker_process import die_with_parent, only_run, rank_device

if TYPE_CHECKING:
    from adapt.embed.vae import TopicTraining
    from adapt.train.checkpoints.seal import Sealing
    from adapt.train.training_run import Progress


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
    mix: Literal["mixed", "published"] = "mixed"
    """What a vector has of the layers: `mixed` is h0 + theta, `published` h0 - 20 h1 + theta (`adapt.embed.vae`)."""
    sample_documents: PositiveInt = 100_000
    """Texts of each source that the model is trained on."""


class Vampire(Embedder):
    """Trains the topic model on a sample, and embeds by its layers."""

    Options = VampireOptions
    learns = True
    packages = ("scikit-learn",)

    def learn(self, texts: Sequence[str], folder: Path) -> dict[str, float]:
        """Finds the words, and counts them for the training.

        Raises:
            DataError: there are hardly any words.
        """
        from scipy.sparse import save_npz

        options = self.options
        bags, counts = Bags.learnt(texts, options.words, min(options.least_documents, len(texts)))
        counts = counts[np.diff(counts.indptr) > 0]  # a text of unknown words says nothing
        bags.save(folder)
        with file_aside(folder / COUNTS_FILE) as aside, aside.open("wb") as file:
            save_npz(file, counts, compressed=False)
        return {"words": len(bags.words)}

    def train(self, folder: Path, resources: ResourcesConfig) -> dict[str, float]:
        """Trains until topics become no more coherent, on `resources.workers` ranks; see `adapt.embed.vae`."""
        return train_topics(TopicRun(str(folder), WEIGHTS_FILE, self.options, self.seed), resources)

    def load(self, folder: Path | None) -> None:
        """Reads what was learnt."""
        import torch
        from safetensors.torch import load_file

        from adapt.embed.vae import TopicVae

        assert folder is not None
        self._bags, weights = Bags.load(folder), load_file(folder / WEIGHTS_FILE)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = TopicVae(weights["background"], self.options.topics)
        self._model.load_state_dict(weights)
        self._model.to(self._device).eval()

    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """By the mean of each text's distribution: nothing is drawn."""
        import torch

        from adapt.embed.vae import SparseBags

        counts, unknown = self._bags.counts(texts)
        parts = [np.zeros((0, self.options.topics), np.float32)]
        with torch.inference_mode():
            for start in range(0, len(texts), EMBEDDED_AT_ONCE):
                bags = SparseBags.of(counts[start : start + EMBEDDED_AT_ONCE], self._device)
                parts.append(self._model.vectors(bags, self.options.mix).cpu().numpy())
        return EmbeddedTexts(np.concatenate(parts), len(texts), unknown)


RUN_NAME = "topics"
COUNTS_FILE = "counts.npz"
"""How often each text of the sample has each word, as scipy stores sparse tables; removed when training has ended."""


@dataclass(frozen=True)
class TopicRun:
    """What the ranks are told."""

    folder: str
    """The stage's folder, which has the counts."""
    weights_file: str
    """Name of the file for the weights of the best epoch."""
    options: VampireOptions
    seed: int


def train_topics(run: TopicRun, resources: ResourcesConfig) -> dict[str, float]:
    """Trains on the cluster this process is connected to, unless that is done already.

    Returns:
        Epochs, the best of them, and its NPMI.

    Raises:
        AdaptError: as `adapt.train.ray_train.on_all_ranks`.
        TrainingError: the loss is not finite.
    """
    folder = Path(run.folder)
    if not (folder / run.weights_file).exists():
        sizes = range(fewest_of(resources.workers), most_of(resources.workers) + 1)
        on_all_ranks(RankedRun(topics_per_worker, {"run": run}, folder, RUN_NAME, resources, sizes, keep_checkpoints=2))
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    (folder / COUNTS_FILE).unlink(missing_ok=True)
    return dict(json.loads((folder / PROGRESS_FILE).read_text()))


def topics_per_worker(config: dict[str, Any]) -> None:
    """What Ray Train runs on each rank. The heavy imports happen there and not in the driver."""
    hide_unreserved_gpus()
    import ray.train

    run: TopicRun = config["run"]
    rank = ray.train.get_context().get_world_rank()
    die_with_parent()
    share_with_group(Path(run.folder).parent.parent)
    with portable_errors(), only_run(Path(run.folder), rank):
        _train(run, rank, config["sealing"])


def _train(run: TopicRun, rank: int, sealing: Sealing) -> None:
    import ray.train
    import torch.distributed as dist
    from scipy.sparse import load_npz

    from adapt.embed.vae import TopicTraining
    from adapt.train.checkpoints.checkpoint import Checkpoints

    folder = Path(run.folder)
    device = rank_device(ray.train.get_context().get_local_world_size())
    training = TopicTraining(load_npz(folder / COUNTS_FILE), run.options, run.seed, device)
    checkpoints = Checkpoints(training, None, folder / CHECKPOINTS / RUN_NAME, sealing)
    progress = checkpoints.load()
    with checkpoints.arriving():
        metrics = File(folder / METRICS_FILE, progress.step) if rank == 0 else None

        def report(known: dict[str, Any]) -> None:
            if metrics:
                metrics.log(known, known["step"])

        training.run(progress, report, checkpoints.save)
        if rank == 0:
            write_best(run, training, progress)
        dist.barrier()


def write_best(run: TopicRun, training: TopicTraining, progress: Progress) -> None:
    """Writes the figures of a training that has ended, then the weights of its best epoch."""
    from safetensors.torch import save_file

    best, epochs = training.best, progress.step // training.steps_an_epoch
    figures = {"epochs": epochs, "best_epoch": best.epoch, "npmi": best.npmi}
    write_atomically(Path(run.folder) / PROGRESS_FILE, json.dumps(figures))
    with file_aside(Path(run.folder) / run.weights_file) as aside:
        save_file({name: value.contiguous() for name, value in best.weights.items()}, aside)
