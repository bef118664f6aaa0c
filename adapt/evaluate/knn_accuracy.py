"""Classifies texts by the labels of their nearest neighbours, to measure a model's features without training."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

from adapt.config import Config, EvaluationConfig
from adapt.evaluate.evaluation_task import ready
from adapt.evaluate.measure_model import call_on_device
from adapt.evaluate.measurements import TaskNeighbours
from adapt.model.locate import Pretrained
from adapt.model.states import text_features
from adapt.task.dataset import Split


def nearest_neighbours(config: Config, pretrained: Pretrained, tasks: Mapping[str, Path]) -> dict[str, TaskNeighbours]:
    """Classifies each task's test texts by their nearest train texts, in a Ray task on the connected cluster.

    Args:
        config: the job's configuration: `comparison.neighbours`, and batch sizes in `evaluation`.
        pretrained: the model.
        tasks: folders of prepared tasks of kind single_label, keyed by name.
    """
    return call_on_device(
        _all, config.resources, config, pretrained, {name: str(folder) for name, folder in tasks.items()}
    )


def _all(config: Config, pretrained: Pretrained, tasks: Mapping[str, str]) -> dict[str, TaskNeighbours]:
    loaded = ready(pretrained, config.objective.kind == "causal")
    by_task = {}
    for name, folder in tasks.items():
        train, test = (Split.load(Path(folder), split) for split in ("train", "test"))
        known, queries = (
            mean_features(loaded.model, split, config.evaluation, loaded.device) for split in (train, test)
        )
        clean = ~np.array(test.leaked, bool)
        labels, truth = np.array(train.labels), np.array(test.labels)[clean]
        accuracy = knn_accuracy(known, labels, queries[clean], truth, config.comparison.neighbours)
        by_task[name] = TaskNeighbours(accuracy, int(clean.sum()), int((~clean).sum()))
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


def knn_accuracy(
    known: np.ndarray, labels: np.ndarray, queries: np.ndarray, truth: np.ndarray, neighbours: int
) -> float | None:
    """Returns the share of test texts for whose label most of their nearest train texts (by cosine) vote.

    Args:
        known: features of the train texts [train, H].
        labels: labels of the train texts [train].
        queries: features of the test texts [test, H].
        truth: labels of the test texts [test].
        neighbours: number of neighbours that vote, at most the number of train texts.

    Returns:
        The accuracy; None if there are no test texts.
    """
    if not len(queries):
        return None
    classifier = KNeighborsClassifier(min(neighbours, len(known)), metric="cosine", algorithm="brute")
    return float(classifier.fit(known, labels).score(queries, truth))
