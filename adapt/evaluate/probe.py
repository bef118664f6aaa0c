"""Measures how well simple classifiers on the frozen features of a model solve a task.

Stage `neighbours` classifies texts by the labels of their nearest neighbours, to measure a model's features without
training.

A probe is a classifier on the features of a model in training. All ranks compute the features of a part of the
examples. Rank 0 then fits the classifier on the train examples, and scores it on two halves of the dev examples: one
half may decide when the training ends and which model it exports, and the other half is only reported, because the best
of many scores is optimistic.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from adapt.config import Config, EvaluationConfig
from adapt.corpus.sample_order import permute
from adapt.evaluate import evaluation_task, losses, measure_model, measurements, while_training
from adapt.model import sparse_prediction
from adapt.model.locate import Pretrained
from adapt.model.packing.packed import Packed
from adapt.model.states import features_of, text_features
from adapt.runner.files import write_atomically
from adapt.statistics.outcomes import metric_from_counts, multi_label
from adapt.task.prepare_task import Facts, Split
from adapt.train import points, stopping


def nearest_neighbours(
    config: Config, pretrained: Pretrained, tasks: Mapping[str, Path], folder: Path
) -> dict[str, measurements.TaskNeighbours]:
    """Classifies each task's test texts by their nearest train texts, in a Ray task on the connected cluster.

    `tasks` are folders of prepared tasks of kind single_label. `hits.json` says for each classified text whether
    its label was right.
    """
    found: dict[str, tuple[list[int], int]] = measure_model.call_on_device(
        _classified, config.resources, folder, config, pretrained, {name: str(task) for name, task in tasks.items()}
    )
    write_atomically(folder / measure_model.HITS_FILE, json.dumps({name: hits for name, (hits, _) in found.items()}))
    return {
        name: measurements.TaskNeighbours(sum(hits) / len(hits) if hits else None, len(hits), left_out)
        for name, (hits, left_out) in found.items()
    }


def _classified(config: Config, pretrained: Pretrained, tasks: Mapping[str, str]) -> dict[str, tuple[list[int], int]]:
    """Returns, for each task, which classified test texts got the right label, and the number of left-out texts."""
    loaded = evaluation_task.ready(pretrained, config.objective.kind == "causal")
    by_task = {}
    for name, folder in tasks.items():
        train, test = (Split.load(Path(folder), split) for split in ("train", "test"))
        known, queries = (
            mean_features(loaded.model, split, config.evaluation, loaded.device) for split in (train, test)
        )
        clean = ~np.array(test.leaked, bool)
        labels, truth = np.array(train.labels), np.array(test.labels)[clean]
        voted = knn_labels(known, labels, queries[clean], measurements.NEIGHBOURS)
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
    """Returns the label that the nearest neighbours (by cosine similarity) of each text vote for [queries].

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


ITERATIONS = 1000
"""Maximum number of iterations of logistic regression."""


class Probe:
    """Scores a probe on a model in training, on all ranks of the training."""

    def __init__(self, place: points.Place, probe: while_training.TaskProbe) -> None:
        self._place, self._kind, evaluation = place, probe.kind, place.config.evaluation
        facts, train, dev = (
            Facts.load(Path(probe.folder)),
            *(Split.load(Path(probe.folder), s) for s in ("train", "dev")),
        )
        self._name, self._metric, self._classes = facts.name, facts.metric, len(facts.labels)
        classes = self._classes if facts.kind == "multi_label" else None
        clean = np.flatnonzero(~np.array(dev.leaked, bool))
        sizes = while_training.probed_examples(len(train), len(clean), probe.examples)
        known, asked = _first(np.arange(len(train)), sizes[0]), _first(clean, sizes[1])
        self._labels = _labels(train, known, classes)
        halves = halves_of(_labels(dev, asked, classes))
        self._truth = [_labels(dev, asked[half], classes) for half in halves]
        self._places = [len(known) + half for half in halves]
        length = evaluation.sequence_length
        self._tokens = [split.tokens[i][:length] for split, of in ((train, known), (dev, asked)) for i in of]
        self._segments = [split.segments[i][:length] for split, of in ((train, known), (dev, asked)) for i in of]
        rows = (
            place.micro_batch * place.config.training.sequence_length // length
        )  # a forward pass of this many rows fits in memory
        self._at_once, self._length = max(1, min(evaluation.micro_batch, rows)), length

    def __call__(self, engine: Any) -> dict[str, float]:
        """Returns the scores on the two halves of dev, on rank 0 only. All ranks must call this at the same time."""
        features = self.features(engine)
        if self._place.rank:
            return {}
        known = features[: len(self._labels)]
        found = {}
        for name, places, truth in zip((stopping.DEV, stopping.OTHER_DEV), self._places, self._truth, strict=True):
            predicted = self._predicted(known, features[places])
            found[f"{self._name}.{name}{self._metric}"] = score_of(truth, predicted, self._classes, self._metric)
        return found

    def features(self, engine: Any) -> np.ndarray:
        """Returns the features of all train and dev examples, float32 [examples, H].

        Each rank computes a part of the examples. All ranks must call this method at the same time.
        """
        passed, own = self._place.share([len(tokens) for tokens in self._tokens])
        texts, segments = ([of[number] for number in passed] for of in (self._tokens, self._segments))

        def states(packed: Packed, second: torch.Tensor | None) -> torch.Tensor:
            return sparse_prediction.states_of(engine, packed, second)

        computed = features_of(states, texts, self._place.device, self._length, self._at_once, segments=segments)
        features = torch.zeros(len(self._tokens), computed.shape[1])
        features[passed[:own]] = torch.from_numpy(computed[:own])
        self._place.add_up(features)
        return features.numpy()

    def _predicted(self, known: np.ndarray, asked: np.ndarray) -> np.ndarray:
        if self._kind == "knn":
            return knn_labels(known, self._labels, asked, measurements.NEIGHBOURS)
        return linear_labels(known, self._labels, asked)


def linear_labels(known: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Predicts the label of each text by logistic regression on standardized features, with L2 regularization of 1.

    A task with several labels per text gets one regression per class.

    Args:
        known: features of the train texts [train, H].
        labels: labels of the train texts [train]. For multi-label tasks, a matrix of zeros and ones [train, classes].
        queries: features of the texts to classify [queries, H].
    """
    if labels.ndim == 2:
        return np.stack([linear_labels(known, column, queries) for column in labels.T], axis=1)
    if len(np.unique(labels)) == 1:
        return np.full(len(queries), labels[0])
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=ITERATIONS))
    return np.asarray(classifier.fit(known, labels).predict(queries))


def score_of(truth: np.ndarray, predicted: np.ndarray, classes: int, metric: str) -> float:
    """Returns the score of predicted labels, as a fraction.

    Args:
        truth: true classes [examples]. For multi-label tasks, a matrix of zeros and ones [examples, classes].
        predicted: predicted classes, in the same form.
        classes: number of classes of the task.
        metric: `macro_f1`, `micro_f1` or `accuracy`.
    """
    if truth.ndim == 2:
        true, guess = ([np.flatnonzero(row).tolist() for row in rows] for rows in (truth, predicted))
        return float(multi_label([true], [guess], classes, metric).scores[0])
    confusion = np.zeros((classes, classes))
    np.add.at(confusion, (truth, predicted), 1)
    return float(metric_from_counts(confusion, metric))


def halves_of(labels: Sequence[int] | np.ndarray) -> list[np.ndarray]:
    """Divides examples into two halves with about equally many examples of each class, or of each set of classes.

    Args:
        labels: classes [examples]. For multi-label tasks, a matrix of zeros and ones [examples, classes].

    Returns:
        The sorted indices of the examples of each half. If the number of examples is odd, the first half has one more
        example.
    """
    _, numbers = np.unique(np.asarray(labels), axis=0, return_inverse=True)
    by_class = np.argsort(numbers.ravel(), kind="stable")
    return [np.sort(by_class[start::2]) for start in (0, 1)]


def _first(numbers: np.ndarray, count: int) -> np.ndarray:
    """Returns the first `count` of the numbers in a fixed random order."""
    first: np.ndarray = numbers[permute(np.arange(count), max(len(numbers), 1), losses.SAMPLE_SEED, 0)]
    return first


def _labels(split: Split, numbers: np.ndarray, classes: int | None) -> np.ndarray:
    """Returns the classes of some examples [examples]. With `classes`, returns zeros and ones [examples, classes]."""
    if classes is None:
        labels: np.ndarray = np.array(split.labels)[numbers]
        return labels
    held = np.zeros((len(numbers), classes), np.int64)
    for row, number in zip(held, numbers, strict=True):
        row[split.labels[number]] = 1
    return held
