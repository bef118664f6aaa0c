"""Finds test items in the text that a model was trained on, by shared runs of words.

The training text is read from its token shards, so it is exactly the text that the model was trained on: after
cleaning and deduplication, without held-out documents. Tokenizers may change a text (`uncased` ones lower it), so
items pass through the same tokenizer before they are compared. The rule is that of
`adapt.corpus.decontamination`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adapt.corpus.cluster_calls import Cluster
from adapt.corpus.decontamination import EvaluationIndex, build_index
from adapt.corpus.token_shards import TokenStream
from adapt.evaluate.benchmark.item_scores import TaskItems
from adapt.model.locate import Pretrained
from adapt.runner.record import load_record
from adapt.support.schema import SHARD_GLOB

AT_ONCE = 500
"""Number of documents that are decoded and searched together."""


@dataclass(frozen=True)
class ShardSearch:
    """Searches the documents of a token shard for items. Other processes call it."""

    index: EvaluationIndex
    pretrained: Pretrained
    """Model whose tokenizer made the shard."""

    def __call__(self, shard: Path) -> Iterator[np.ndarray]:
        """Yields the numbers of the items that some documents of the shard contain."""
        from adapt.model.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(self.pretrained.model, self.pretrained.tokenizer)
        stream = TokenStream((shard,))
        for begin in range(0, stream.documents, AT_ONCE):
            end = min(begin + AT_ONCE, stream.documents)
            documents = [stream.document(number).tolist() for number in range(begin, end)]
            texts = tokenizer.batch_decode(documents, skip_special_tokens=True)
            yield np.unique(self.index.sets[self.index.contained(texts)])


def items_index(tasks: Mapping[str, TaskItems], pretrained: Pretrained, ngram: int, overlap: float) -> EvaluationIndex:
    """Builds the index of the items of all tasks. The set of a text is the number of its item over all tasks.

    Args:
        tasks: the tasks, whose items are numbered in order. Tasks with unknown texts have numbers without texts.
        pretrained: model whose tokenizer the items pass through.
        ngram: length of the runs [words].
        overlap: smallest share of shared runs.
    """
    from adapt.model.tokenizer import load_tokenizer

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
    tasks: Mapping[str, TaskItems], texts: Sequence[Path], search: ShardSearch, cluster: Cluster
) -> dict[str, np.ndarray | None]:
    """Returns which items are in training text, bool [items], keyed by task. None for tasks with unknown texts.

    Args:
        tasks: the tasks of the search's index.
        texts: folders of prepared texts that a model was trained on.
        search: search for the items.
        cluster: searches the shards in parallel.
    """
    leaked = np.zeros(sum(task.items for task in tasks.values()), bool)
    for found in cluster.spread(search, [shard for folder in texts for shard in sorted(folder.glob(SHARD_GLOB))]):
        for numbers in found:
            leaked[numbers] = True
    ends = np.cumsum([task.items for task in tasks.values()])
    parts = np.split(leaked, ends[:-1])
    return {name: None if task.texts is None else part for (name, task), part in zip(tasks.items(), parts, strict=True)}
