"""Stores a model's scores on the items of a task, and computes the statistics by which a library summarises them.

An interval resamples items, so the score must be a function of values per item. For other scores, such as corpus BLEU,
no interval is shown. `ItemMeasure.of` computes the score from the values and compares it with the library's score, so a
statistic that a library defines differently is never used.
"""

import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from adapt.ray.runtime import causes, lacks_memory
from adapt.runner.files import write_atomically
from adapt.statistics.outcomes import Tested
from adapt.support.errors import AdaptError, DataError, StageError

CLOSE = 1e-6
"""Our statistic is only used if it differs from the library's score by at most this much, relative to the score."""


def _mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(values.mean(axis))


def _weighted(values: np.ndarray, weights: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(values.sum(axis) / weights.sum(axis))


def _perplexity(values: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(np.exp(-_mean(values, axis)))


def _weighted_perplexity(values: np.ndarray, weights: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(np.exp(-_weighted(values, weights, axis)))


def _bits_per_byte(values: np.ndarray, weights: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(-_weighted(values, weights, axis) / math.log(2))


def _spearman(truth: np.ndarray, values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Computes Spearman's rank correlation: Pearson's correlation of the ranks, with mean ranks for ties."""
    from scipy.stats import rankdata

    first, second = (rankdata(column, axis=axis) for column in (truth, values))
    first, second = (ranks - ranks.mean(axis, keepdims=True) for ranks in (first, second))
    with np.errstate(invalid="ignore"):  # a resample with equal values has no correlation, and counts as 0
        found = (first * second).sum(axis) / np.sqrt((first**2).sum(axis) * (second**2).sum(axis))
    return np.asarray(np.nan_to_num(found))


STATISTICS: dict[str, Callable[..., np.ndarray]] = {
    "mean": _mean,
    "perplexity": _perplexity,
    "weighted_perplexity": _weighted_perplexity,
    "bits_per_byte": _bits_per_byte,
    "spearman": _spearman,
}
"""Functions that compute a score from columns with one value per item, keyed by name. All except `spearman` have the
names of aggregations of lm-evaluation-harness, and take log-likelihoods [nats] and numbers of words or bytes."""
WITH_WEIGHTS = ("weighted_perplexity", "bits_per_byte", "spearman")
"""Names of statistics that need two columns: values and weights or, for `spearman`, true and predicted values."""


@dataclass(frozen=True)
class ItemMeasure:
    """One metric of a task for one model."""

    score: float
    """The score as the library computes it."""
    higher_is_better: bool
    statistic: str = ""
    """Key in STATISTICS. Empty if the score cannot be computed from values per item."""
    columns: list[list[float]] = field(default_factory=list)
    """Values of the items: one or two lists, in the order of the items. Empty if there is no statistic."""

    @classmethod
    def of(cls, score: float, higher_is_better: bool, statistic: str, values: Sequence[Any]) -> "ItemMeasure":
        """Creates a measure from the library's score and the items' values.

        The score should equal `statistic`, which is ignored if it is not in STATISTICS. The value of an item is
        a number, or a pair of numbers.
        """
        plain = cls(float(score), higher_is_better)
        if statistic not in STATISTICS:
            return plain
        try:
            columns = np.atleast_2d(np.array(values, np.float64).T)
        except (TypeError, ValueError):
            return plain
        if len(columns) != 1 + (statistic in WITH_WEIGHTS) or not np.isfinite(columns).all():
            return plain
        ours = float(STATISTICS[statistic](*columns))
        if not math.isclose(ours, score, rel_tol=CLOSE, abs_tol=CLOSE):
            return plain
        return cls(float(score), higher_is_better, statistic, columns.tolist())


@dataclass(frozen=True)
class TaskItems:
    """A task's scores of one model."""

    library: str
    """`harness` or `mteb`."""
    items: int
    measures: dict[str, ItemMeasure]
    """The metrics, keyed by name. The first one is the task's main metric."""
    digests: list[str]
    """Hash of each item, to check that two models answered the same items."""
    texts: list[list[str]] | None
    """Texts of each item that must not be in training text. None if they are not known."""
    tokens: int = 0
    """Number of tokens that the model has processed, padding included."""
    seconds: float = 0.0

    @property
    def main(self) -> str:
        """Name of the main metric."""
        return next(iter(self.measures))


def write_items(folder: Path, name: str, task: TaskItems) -> None:
    """Writes a task's scores to a file, which exists only when it is complete."""
    write_atomically(folder / file_name(name), json.dumps({"task": name, **asdict(task)}, ensure_ascii=False))


def read_items(folder: Path) -> dict[str, TaskItems]:
    """Reads the scores of all tasks in a folder, keyed by task."""
    found = {}
    for file in sorted(folder.glob("items-*.json")):
        values = json.loads(file.read_text(encoding="utf-8"))
        name = values.pop("task")
        measures = {metric: ItemMeasure(**of) for metric, of in values.pop("measures").items()}
        found[name] = TaskItems(measures=measures, **values)
    return found


def file_name(task: str) -> str:
    """Returns the name of the file with a task's scores. Characters that a file name cannot have are replaced."""
    letters = (letter if letter.isalnum() or letter in "._+-" else f"%{ord(letter):x}" for letter in task)
    return f"items-{''.join(letters)}.json"


def joined_items(parts: Mapping[str, TaskItems]) -> TaskItems:
    """Joins the tasks of a group into one task over all their items.

    Only metrics that every part can compute from values per item are kept. The score of such a metric is computed over
    all items, so large tasks count more. Without such a metric, the scores of the first metric that all parts share are
    averaged.
    """
    tasks = list(parts.values())
    shared = [name for name in tasks[0].measures if all(name in task.measures for task in tasks)]
    if not shared:
        raise StageError(
            f"the tasks {', '.join(parts)} belong to one group, but share no metric",
            "name the tasks instead of the group in harness.tasks",
        )
    measures = {}
    for name in shared:
        of = [task.measures[name] for task in tasks]
        if of[0].statistic and {measure.statistic for measure in of} == {of[0].statistic}:
            by_column = zip(*(measure.columns for measure in of), strict=True)
            columns = [[*chain.from_iterable(lists)] for lists in by_column]
            score = float(STATISTICS[of[0].statistic](*map(np.array, columns)))
            measures[name] = ItemMeasure(score, of[0].higher_is_better, of[0].statistic, columns)
    if not measures:
        scores = [task.measures[shared[0]] for task in tasks]
        measures[shared[0]] = ItemMeasure(float(np.mean([of.score for of in scores])), scores[0].higher_is_better)
    texts = None if any(task.texts is None for task in tasks) else [text for task in tasks for text in task.texts or ()]
    return TaskItems(
        library=tasks[0].library,
        items=sum(task.items for task in tasks),
        measures=measures,
        digests=[digest for task in tasks for digest in task.digests],
        texts=texts,
        tokens=sum(task.tokens for task in tasks),
        seconds=sum(task.seconds for task in tasks),
    )


def results_of_seeds(measures: Sequence[ItemMeasure], kept: np.ndarray) -> Tested:
    """Returns the scores of models that differ in their seed, with the values per item for resampling.

    Args:
        measures: the measure of each seed. Its statistic must be computed from sums over items, as all except
            `spearman` are.
        kept: whether each item counts, bool [items].
    """
    from scipy.sparse import csr_array

    statistic = measures[0].statistic
    has_weights = statistic in WITH_WEIGHTS

    def counts(measure: ItemMeasure) -> csr_array:
        columns = np.array(measure.columns)[:, kept]
        weights = columns[1] if has_weights else np.ones(columns.shape[1])
        return csr_array(np.stack([columns[0], weights], axis=1))

    def score(sums: np.ndarray) -> np.ndarray:
        values, weights = sums[..., 0:1], sums[..., 1:2]
        if has_weights:
            return STATISTICS[statistic](values, weights)
        return STATISTICS[statistic](values / weights)

    by_seed = tuple(counts(measure) for measure in measures)
    scores = np.array([float(score(np.asarray(of.sum(0)).ravel())) for of in by_seed])
    return Tested(scores, by_seed, score)


@contextmanager
def hushed() -> Iterator[None]:
    """Hides progress bars and messages of the libraries, which would fill the log of a job."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
        yield


@contextmanager
def told_of_task(name: str) -> Iterator[None]:
    """Turns errors of a library into a DataError that names the task. Errors about a lack of memory are not changed."""
    try:
        yield
    except AdaptError:
        raise
    except Exception as error:  # libraries raise many types of errors, depending on the task
        if any(map(lacks_memory, causes(error))):
            raise
        said = f"{type(error).__name__}: {error}".split("\n")[0][:300]
        raise DataError(
            f"the task {name} cannot be measured: {said}",
            "check the task's file and data; data on the Hugging Face Hub need network access or a cached copy",
        ) from error
