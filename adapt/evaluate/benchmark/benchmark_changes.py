"""Compares models on the items of standard tasks: paired by item, over seeds, and without leaked items.

If two single models are compared, the interval of a change is a bootstrap over items. With several seeds per model,
items and seeds are both treated as random samples (`adapt.statistics.comparison`). A rank correlation is not a sum over
items. Its variance is the variance over items (bootstrap of the mean over seeds) plus the variance of the mean over
seeds, and the quantile is Student's t with the seeds' degrees of freedom.

Leaked items are found in the text that a model was trained on, by shared word n-grams. The training text is read from
its token shards, so it is exactly the text that the model was trained on: after cleaning and deduplication, without
held-out documents. Tokenizers may change a text (`uncased` tokenizers convert it to lower case), so items pass through
the same tokenizer before they are compared. Items count as leaked by the rule of `adapt.corpus.decontamination`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap, t

from adapt.corpus import cluster_calls, token_shards
from adapt.corpus.decontamination import EvaluationIndex, build_index
from adapt.evaluate import compared_models, measure_model
from adapt.evaluate.benchmark.item_scores import STATISTICS, ItemMeasure, TaskItems, results_of_seeds
from adapt.evaluate.measurements import FEWEST, Estimate
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.runner.record import load_record
from adapt.statistics.comparison import compare
from adapt.statistics.seeds import CONFIDENCE, ROUNDING, spread
from adapt.support.errors import DataError
from adapt.support.schema import SHARD_GLOB

Seeds = Sequence[Mapping[str, TaskItems]]
"""The scores of models that differ only in their seed. Each entry belongs to one model and is keyed by task."""


def compare_tasks(
    models: Mapping[str, Seeds], leaked: Mapping[str, np.ndarray | None], samples: int
) -> list[compared_models.TaskChange]:
    """Compares models on each metric of each task with the first model.

    Args:
        models: scores of each model, or of each group of models that differ in their seed, keyed by name.
        leaked: which items of each task are in training text, bool [items]; None if this is not known.
        samples: number of bootstrap resamples.

    Raises:
        DataError: two models answered different items.
    """
    first = next(iter(models))
    changes = []
    for task, plain in models[first][0].items():
        _check_same(task, models)
        for metric, measure in plain.measures.items():
            of = {name: [seed[task].measures[metric] for seed in seeds] for name, seeds in models.items()}
            everything, mask = np.ones(plain.items, bool), leaked.get(task)
            has_leaks = mask is not None and mask.any() and not mask.all()
            kept = ~mask if has_leaks and mask is not None else everything
            scores, differences = _compared(of, everything, samples)
            clean = _compared(of, kept, samples) if has_leaks and _shared_statistic(of[first]) else ({}, {})
            changes.append(
                compared_models.TaskChange(
                    task=task,
                    library=plain.library,
                    metric=metric,
                    items=plain.items,
                    is_main=metric == plain.main,
                    higher_is_better=measure.higher_is_better,
                    scores=scores,
                    changes=differences,
                    leaked=None if mask is None else int(mask.sum()),
                    clean_scores=clean[0],
                    clean_changes=clean[1],
                )
            )
    return changes


def _check_same(task: str, models: Mapping[str, Seeds]) -> None:
    (first, seeds), *_ = models.items()
    for name, others in models.items():
        for other in others:
            if other[task].digests != seeds[0][task].digests:
                raise DataError(
                    f"the items of {task} have changed between the evaluations of {first} and {name}",
                    "delete the older of these two evaluations in the folder runs/benchmark, and run the job again",
                )


def _compared(
    of: Mapping[str, Sequence[ItemMeasure]], kept: np.ndarray, samples: int
) -> tuple[dict[str, Estimate], dict[str, Estimate]]:
    """Returns the score of each model, and the change from the first model to each other model."""
    (_, baseline), *others = of.items()
    scores = {name: _score(measures, kept, samples) for name, measures in of.items()}
    changes = {name: _change(baseline, measures, kept, samples) for name, measures in others}
    return scores, changes


def _shared_statistic(measures: Sequence[ItemMeasure]) -> str:
    """Returns the statistic of a metric. Empty if the score of a model cannot be computed from values per item.

    A single seed may lack the statistic: if all its vectors are equal, they have no rank correlation.
    """
    first, *others = [measure.statistic for measure in measures]
    return first if all(other == first for other in others) else ""


def _values(measure: ItemMeasure, kept: np.ndarray) -> list[np.ndarray]:
    return [np.array(column)[kept] for column in measure.columns]


def _score(measures: Sequence[ItemMeasure], kept: np.ndarray, samples: int) -> Estimate:
    statistic = _shared_statistic(measures)
    if len(measures) == 1 and statistic:
        return measure_model.with_interval(STATISTICS[statistic], _values(measures[0], kept), samples)
    if not statistic:
        return Estimate(float(np.mean([measure.score for measure in measures])))
    over = spread([float(STATISTICS[of.statistic](*_values(of, kept))) for of in measures])
    return Estimate(over.mean, over.low, over.high)


def _change(
    baseline: Sequence[ItemMeasure], measures: Sequence[ItemMeasure], kept: np.ndarray, samples: int
) -> Estimate:
    """Estimates the mean score of some models minus the mean score of the baseline, on the items in `kept`."""
    statistic = _shared_statistic([*baseline, *measures])
    if not statistic:
        means = [float(np.mean([measure.score for measure in side])) for side in (baseline, measures)]
        return Estimate(means[1] - means[0])
    if statistic != "spearman" and max(len(baseline), len(measures)) > 1:
        found = compare(results_of_seeds(measures, kept), results_of_seeds(baseline, kept), samples)
        return Estimate(found.difference, found.low, found.high)
    columns = [column for measure in (*baseline, *measures) for column in _values(measure, kept)]
    width = len(measures[0].columns)
    difference = partial(_difference, STATISTICS[statistic], len(baseline), width)
    if len(baseline) == len(measures) == 1:
        return measure_model.with_interval(difference, columns, samples)
    return _over_items_and_seeds(difference, columns, (baseline, measures), kept, samples)


def _difference(statistic: Any, before: int, width: int, *columns: Any, axis: int = -1) -> np.ndarray:
    """Computes the mean statistic of the new models minus the mean statistic of the baseline's models.

    The models of the baseline come first in `columns`. Each model has `width` columns.
    """
    of = [statistic(*columns[place : place + width], axis=axis) for place in range(0, len(columns), width)]
    return np.asarray(np.mean(of[before:], axis=0) - np.mean(of[:before], axis=0))


def _over_items_and_seeds(
    difference: Any,
    columns: Sequence[np.ndarray],
    sides: tuple[Sequence[ItemMeasure], Sequence[ItemMeasure]],
    kept: np.ndarray,
    samples: int,
) -> Estimate:
    """Estimates a change by adding the variances over items and over seeds; see the docstring of this module."""
    value = float(difference(*columns))
    seeds = [
        np.array([float(STATISTICS[of.statistic](*_values(of, kept))) for of in side])
        for side in sides
        if len(side) > 1
    ]
    over_seeds = sum(float(scores.var(ddof=1)) / len(scores) for scores in seeds)
    if len(columns[0]) < FEWEST or over_seeds <= ROUNDING**2:
        return Estimate(value)
    drawn = bootstrap(
        columns,
        difference,
        paired=True,
        n_resamples=samples,
        batch=max(1, 1_000_000 // len(columns[0])),
        method="percentile",
        rng=np.random.default_rng(0),
    )
    error = float(np.sqrt(drawn.standard_error**2 + over_seeds))
    half = float(t.ppf((1 + CONFIDENCE) / 2, min(len(scores) for scores in seeds) - 1)) * error
    return Estimate(value, value - half, value + half)


AT_ONCE = 500
"""Number of documents per batch that is decoded and searched."""


@dataclass(frozen=True)
class ShardSearch:
    """Searches the documents of a token shard for items. The object is sent to other processes, which call it."""

    index: EvaluationIndex
    pretrained: Pretrained
    """Model whose tokenizer tokenized the shard."""

    def __call__(self, shard: Path) -> Iterator[np.ndarray]:
        """Yields the numbers of the items found in the shard's documents, for each batch of AT_ONCE documents."""
        tokenizer = load_tokenizer(self.pretrained.model, self.pretrained.tokenizer)
        stream = token_shards.TokenStream((shard,))
        for begin in range(0, stream.documents, AT_ONCE):
            end = min(begin + AT_ONCE, stream.documents)
            documents = [stream.document(number).tolist() for number in range(begin, end)]
            texts = tokenizer.batch_decode(documents, skip_special_tokens=True)
            yield np.unique(self.index.sets[self.index.contained(texts)])


def items_index(tasks: Mapping[str, TaskItems], pretrained: Pretrained, ngram: int, overlap: float) -> EvaluationIndex:
    """Builds the index of the items of all tasks. Each item is an evaluation set, named by the item's number.

    Args:
        tasks: the tasks. Their items are numbered in order over all tasks. An item without a known text has an empty
            set.
        pretrained: model whose tokenizer the items pass through.
        ngram: length of the compared n-grams [words].
        overlap: an item counts as leaked if a document contains at least this share of the item's n-grams.
    """
    loaded = load_tokenizer(pretrained.model, pretrained.tokenizer)

    def as_trained(text: str) -> str:
        ids = loaded(text, add_special_tokens=False, verbose=False)["input_ids"]
        return str(loaded.decode(ids, skip_special_tokens=True))

    texts = [item for task in tasks.values() for item in task.texts or [[]] * task.items]
    return build_index([(str(n), map(as_trained, item)) for n, item in enumerate(texts)], ngram, overlap)


def was_tokenized_by(folder: Path, digest: str) -> bool:
    """Returns whether a prepared text was tokenized by the tokenizer with this digest."""
    record = load_record(folder)
    return bool(record and record.what.get("tokenizer") in (None, digest))


def leaked_items(
    tasks: Mapping[str, TaskItems], texts: Sequence[Path], search: ShardSearch, cluster: cluster_calls.Cluster
) -> dict[str, np.ndarray | None]:
    """Returns which items are in training text, bool [items], keyed by task.

    The value is None if the task's texts are unknown.

    `tasks` are in the order of the index of `search`. `texts` are folders of prepared texts that a model was
    trained on.
    """
    leaked = np.zeros(sum(task.items for task in tasks.values()), bool)
    for found in cluster.spread(search, [shard for folder in texts for shard in sorted(folder.glob(SHARD_GLOB))]):
        for numbers in found:
            leaked[numbers] = True
    ends = np.cumsum([task.items for task in tasks.values()])
    parts = np.split(leaked, ends[:-1])
    return {name: None if task.texts is None else part for (name, task), part in zip(tasks.items(), parts, strict=True)}
