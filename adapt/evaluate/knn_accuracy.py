"""Classifies texts by the labels of their nearest neighbours, to measure a model's features without training."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

from adapt.config import Config, EvaluationConfig
from adapt.evaluate.evaluation_task import ready
from adapt.evaluate.measure_model import HITS_FILE, call_on_device
from adapt.evaluate.measurements import TaskNeighbours
from adapt.model.locate import Pretrained
from adapt.model.states import text_features
from adapt.runner.files import write_atomically
from adapt.task.dataset import Split


def nearest_neighbours(
    config: Config, pretrained: Pretrained, tasks: Mapping[str, Path], folder: Path
) -> dict[str, TaskNeighbours]:
    """Classifies each task's test texts by their nearest train texts, in a Ray task on the connected cluster.

    Args:
        config: the job's configuration: `comparison.neighbours`, and batch sizes in `evaluation`.
        pretrained: the model.
        tasks: folders of prepared tasks of kind single_label, keyed by name.
        folder: folder in which the classified texts are written to `hits.json`.
    """
    found: dict[str, tuple[list[int], int]] = call_on_device(
        _all, config.resources, folder, config, pretrained, {name: str(task) for name, task in tasks.items()}
    )
    write_atomically(folder / HITS_FILE, json.dumps({name: hits for name, (hits, _) in found.items()}))
    return {
        name: TaskNeighbours(sum(hits) / len(hits) if hits else None, len(hits), left_out)
        for name, (hits, left_out) in found.items()
    }


def _all(config: Config, pretrained: Pretrained, tasks: Mapping[str, str]) -> dict[str, tuple[list[int], int]]:
    """Returns, for each task, whether each classified test text got the right label, and the number left out."""
    loaded = ready(pretrained, config.objective.kind == "causal")
    by_task = {}
    for name, folder in tasks.items():
        train, test = (Split.load(Path(folder), split) for split in ("train", "test"))
        known, queries = (
            mean_features(loaded.model, split, config.evaluation, loaded.device) for split in (train, test)
        )
        clean = ~np.array(test.leaked, bool)
        labels, truth = np.array(train.labels), np.array(test.labels)[clean]
        voted = knn_labels(known, labels, queries[clean], config.comparison.neighbours)
        by_task[name] = ((voted == truth).astype(int).tolist(), int((~clean).sum()))
    return by_task


def mean_features(
    model: torch.nn.Module, split: Split, evaluation: EvaluationConfig, device: torch.device
) -> np.ndarray:
    """Returns the mean of the last layer's states over all tokens of each text, float32 [examples, H].

    Special tokens are included. Texts longer than `evaluation.sequence_length` are split, and the mean is over the
    tokens of all parts.
    """
    if not len(split):
        return np.zeros((0, 0), np.float32)
    length, at_once = evaluation.sequence_length, evaluation.micro_batch
    return text_features(model, split.tokens, device, length, at_once, segments=split.segments)


def knn_labels(known: np.ndarray, labels: np.ndarray, queries: np.ndarray, neighbours: int) -> np.ndarray:
    """Returns the label of each text by the vote of its nearest neighbours (by cosine) [queries].

    Args:
        known: features of the train texts [train, H].
        labels: labels of the train texts [train].
        queries: features of the texts to classify [queries, H].
        neighbours: number of neighbours that vote, at most the number of train texts.
    """
    if not len(queries):
        return labels[:0]
    classifier = KNeighborsClassifier(min(neighbours, len(known)), metric="cosine", algorithm="brute")
    return np.asarray(classifier.fit(known, labels).predict(queries))
