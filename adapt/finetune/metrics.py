"""Computes metrics of predictions: scores by class, entities (counted as in conlleval and seqeval), calibration."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from sklearn import metrics

from adapt.statistics.outcomes import spans
from adapt.task.prepare_task import IGNORED, Facts

Labels: TypeAlias = Sequence[Any]
"""The true labels, as in `adapt.task.prepare_task.Split`: for each example the index of its class, or a list of
indices."""
Probabilities: TypeAlias = np.ndarray | Sequence[np.ndarray]
"""Probabilities of the C classes, [examples, C]. Rows sum to 1, except for `multi_label`. For `tokens`, there is one
array [tokens, C] per example, and only the rows of labelled tokens are used."""
THRESHOLD = 0.5
"""For `multi_label`, a label is predicted if its probability is at least this value."""


def task_scores(facts: Facts, truth: Labels, probabilities: Probabilities, leaked: Sequence[bool]) -> dict[str, Any]:
    """Computes all scores of a split, as JSON values.

    Returns:
        - `score`: the score in the task's metric
        - `score_without_leaks`: the score over the examples that do not leak; None if no example or every example leaks
        - `examples` and `examples_without_leaks`: numbers of examples
        - `macro_f1`, `micro_f1`, `accuracy`
        - `per_class`: precision, recall, f1 and support
        - `confusion`: for `single_label`, with true classes in rows
        - the results of `calibration`; for `multi_label` over all decisions on a label, for `tokens` over words

        For `single_label`, `macro_f1` is the mean over the classes that occur in truth or predictions, and `micro_f1`
        (the metric of ChemProt in the paper) equals `accuracy`. For `multi_label`, `macro_f1` is the mean over all
        classes, and `accuracy` is the share of examples with exactly the right labels. For `tokens`, all F1 scores
        count entities with exact boundaries and type, and `per_class` is keyed by entity type. The result then also has
        `precision`, `recall` and `entity_f1`, which equals `micro_f1`. `accuracy` is the share of words with the right
        label.
    """
    predicted = predictions(facts, probabilities)
    clean = [number for number, leaks in enumerate(leaked) if not leaks]
    without = None
    if 0 < len(clean) < len(leaked):
        without = metric_of(facts, [truth[i] for i in clean], [predicted[i] for i in clean])
    kind = _entity_scores if facts.kind == "tokens" else _class_scores
    return {
        "metric": facts.metric,
        "score": metric_of(facts, truth, predicted),
        "score_without_leaks": without,
        "examples": len(truth),
        "examples_without_leaks": len(clean),
        **kind(facts, truth, predicted),
        **calibration(*_decisions(facts, truth, probabilities)),
    }


def predictions(facts: Facts, probabilities: Probabilities) -> Labels:
    """Returns the predicted labels in the form of the true labels. For `tokens`, there is one label per token."""
    if facts.kind == "single_label":
        return [int(row.argmax()) for row in probabilities]
    if facts.kind == "multi_label":
        return [np.flatnonzero(row >= THRESHOLD).tolist() for row in probabilities]
    return [row.argmax(1).tolist() for row in probabilities]


def metric_of(facts: Facts, truth: Labels, predicted: Labels) -> float:
    """Returns the score in the task's metric only, for example to choose the best epoch."""
    if facts.metric == "entity_f1":
        return entity_scores(_names(facts, truth, predicted))[0]["f1"]
    true, guess = _arrays(facts, truth), _arrays(facts, predicted)
    if facts.metric == "accuracy":
        return float(metrics.accuracy_score(true, guess))
    return float(metrics.f1_score(true, guess, average=facts.metric.removesuffix("_f1"), zero_division=0))


def _class_scores(facts: Facts, truth: Labels, predicted: Labels) -> dict[str, Any]:
    true, guess = _arrays(facts, truth), _arrays(facts, predicted)
    classes = range(len(facts.labels))
    names = ("precision", "recall", "f1", "support")
    columns = metrics.precision_recall_fscore_support(true, guess, labels=classes, zero_division=0)
    scores = {
        "macro_f1": float(metrics.f1_score(true, guess, average="macro", zero_division=0)),
        "micro_f1": float(metrics.f1_score(true, guess, average="micro", zero_division=0)),
        "accuracy": float(metrics.accuracy_score(true, guess)),
        "per_class": {
            label: dict(zip(names, (column[row].item() for column in columns), strict=True))
            for row, label in enumerate(facts.labels)
        },
    }
    if facts.kind == "single_label":
        scores["confusion"] = metrics.confusion_matrix(true, guess, labels=classes).tolist()
    return scores


def _entity_scores(facts: Facts, truth: Labels, predicted: Labels) -> dict[str, Any]:
    pairs = list(_names(facts, truth, predicted))
    total, by_type = entity_scores(pairs)
    words = [a == b for true, guess in pairs for a, b in zip(true, guess, strict=True)]
    return {
        "entity_f1": total["f1"],
        "precision": total["precision"],
        "recall": total["recall"],
        "macro_f1": sum(scores["f1"] for scores in by_type.values()) / max(len(by_type), 1),
        "micro_f1": total["f1"],
        "accuracy": sum(words) / max(len(words), 1),
        "per_class": by_type,
    }


def _arrays(facts: Facts, labels: Labels) -> np.ndarray:
    """Returns labels as an array: class indices, [examples], or for `multi_label` zeros and ones, [examples, C]."""
    if facts.kind == "single_label":
        return np.asarray(labels, np.int64)
    held = np.zeros((len(labels), len(facts.labels)), np.int64)
    for row, those in zip(held, labels, strict=True):
        row[those] = 1
    return held


def _names(facts: Facts, truth: Labels, predicted: Labels) -> Iterator[tuple[list[str], list[str]]]:
    """Yields the names of the true and the predicted labels of each example's words, for tasks of kind `tokens`."""
    for true, guess in zip(truth, predicted, strict=True):
        words = [pair for pair in zip(true, guess, strict=True) if pair[0] != IGNORED]
        yield [facts.labels[label] for label, _ in words], [facts.labels[label] for _, label in words]


def _decisions(facts: Facts, truth: Labels, probabilities: Probabilities) -> tuple[np.ndarray, np.ndarray]:
    """Returns the true class, [n], and the probabilities, [n, C], of each decision.

    For `multi_label`, each pair of an example and a label is a decision between no and yes (C = 2).
    """
    if facts.kind == "single_label":
        return _arrays(facts, truth), np.asarray(probabilities)
    if facts.kind == "multi_label":
        yes = np.asarray(probabilities).ravel()
        return _arrays(facts, truth).ravel(), np.stack([1 - yes, yes], 1)
    true = np.concatenate(truth)
    return true[true != IGNORED], np.concatenate(list(probabilities))[true != IGNORED]


EntityScores: TypeAlias = dict[str, float]
"""Precision, recall, f1 and support of entities."""


def entity_scores(
    pairs: Iterable[tuple[Sequence[str], Sequence[str]]],
) -> tuple[EntityScores, dict[str, EntityScores]]:
    """Returns the scores of entities over all types, and keyed by type.

    An entity is right if its boundaries and its type are those of a true entity.
    """
    true, predicted, right = Counter[str](), Counter[str](), Counter[str]()
    for truth, guess in pairs:
        entities, guessed = spans(truth), spans(guess)
        true.update(kind for kind, _, _ in entities)
        predicted.update(kind for kind, _, _ in guessed)
        right.update(kind for kind, _, _ in entities & guessed)
    by_type = {kind: _scores(right[kind], predicted[kind], true[kind]) for kind in sorted(true | predicted)}
    return _scores(right.total(), predicted.total(), true.total()), by_type


def _scores(right: int, predicted: int, true: int) -> EntityScores:
    return {
        "precision": right / max(predicted, 1),
        "recall": right / max(true, 1),
        "f1": 2 * right / max(predicted + true, 1),
        "support": true,
    }


BINS = 15
SMALLEST = 1e-12
"""Lower limit of probabilities in the log-likelihood, so that one confident error does not make the mean infinite."""


def calibration(truth: np.ndarray, probabilities: np.ndarray) -> dict[str, Any]:
    """Computes the calibration of n decisions between C classes.

    The expected calibration error (Guo et al. 2017, arXiv 1706.04599, equation 3) sorts decisions by their confidence,
    the largest probability, into 15 bins ((b - 1) / 15, b / 15]. With accuracy and mean confidence in each bin,
    ECE = sum over b of n_b / n |accuracy_b - confidence_b|. The negative log-likelihood is the mean of
    -ln p(true class) [nats]. The Brier score is the mean of sum over c of (p_c - [c is true])^2, between 0 and 2.

    Args:
        truth: true classes, int [n].
        probabilities: [n, C], rows sum to 1.

    Returns:
        `ece`, `nll`, `brier`, and `reliability`: bounds, number of decisions, accuracy and mean confidence of each bin
        that is not empty.
    """
    probabilities = np.asarray(probabilities, np.float64)
    confidence = probabilities.max(1)
    right = probabilities.argmax(1) == truth
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    reliability = []
    for number in np.unique(bins):
        inside = bins == number
        reliability.append(
            {
                "low": number / BINS,
                "high": (number + 1) / BINS,
                "decisions": int(inside.sum()),
                "accuracy": float(right[inside].mean()),
                "confidence": float(confidence[inside].mean()),
            }
        )
    of_truth = probabilities[np.arange(len(truth)), truth]
    gaps = [interval["decisions"] * abs(interval["accuracy"] - interval["confidence"]) for interval in reliability]
    return {
        "ece": sum(gaps) / len(truth),
        "nll": float(-np.log(of_truth.clip(SMALLEST)).mean()),
        "brier": float(((probabilities**2).sum(1) - 2 * of_truth + 1).mean()),
        "reliability": reliability,
    }
