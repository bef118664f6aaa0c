"""Decides which documents are held out to measure losses, so that no text is both measured and trained on.

Each document has a key, a 64-bit hash of its normalised text. Two rules keep measured and trained text separate, also
across files. First, the documents with the smallest keys are held out, and every corpus of a configuration holds out
the same share. Second, if a whole text is measured (general text, the dev split of a task), every document with the key
of a measured document is left out of training.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, floor, log10
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from adapt.corpus import shingles, text_profile, token_shards
from adapt.corpus.cleaning.cleaning_blocks import Drop
from adapt.runner import Record
from adapt.runner.files import link_or_copy, storage_errors
from adapt.support.schema import HELDOUT_GLOB, KEYS, SHARD_GLOB

MEASURED = Drop("measured")
"""Reason to drop a document from training: losses are measured on the same text, or on a near copy."""
TRAINED = Drop("trained on elsewhere")
"""Reason to drop a held-out document: an earlier corpus trains on the same text or on a near copy of it."""


def key_of(text: str) -> int:
    """Returns the key of a document. The key does not depend on the case, spaces and Unicode form of the text."""
    return int(keys_of_normalised([shingles.normalised(text).encode("utf-8", "replace")])[0])


def keys_of(texts: Sequence[str]) -> np.ndarray:
    """Returns the key of each document: uint64 [documents]."""
    return keys_of_normalised(shingles.normalised_texts(texts))


def keys_of_normalised(texts: Sequence[bytes]) -> np.ndarray:
    """Returns the keys of texts that are normalised already, in UTF-8: uint64 [documents]."""
    return np.frombuffer(b"".join(blake2b(text, digest_size=8).digest() for text in texts), ">u8").astype(np.uint64)


def in_share(keys: np.ndarray, fraction: float) -> np.ndarray:
    """Returns, for each document, whether it belongs to the held-out share: bool [documents].

    The decision depends only on the key, so the copies of a document are either all held out or all trained on.
    """
    # keys are compared as integers, because float64 cannot represent all of them
    share: np.ndarray = keys < ceil(fraction * 2**64)
    return share


class HeldShare(NamedTuple):
    """A share of the documents to hold out, and the number of documents that this share holds out."""

    share: float
    documents: int


def share_holding(folders: Iterable[Path], documents: int) -> HeldShare | None:
    """Returns the smallest share, rounded up to two digits, that holds out at least `documents` documents.

    Returns:
        The share and the number of documents that it holds out; None if no document would remain to train on.

    Raises:
        DataError: a shard cannot be read.
    """
    by_shard = [keys for folder in folders for pattern in (SHARD_GLOB, HELDOUT_GLOB) for keys in _keys(folder, pattern)]
    return share_of_keys(np.concatenate([np.zeros(0, np.uint64), *by_shard]), documents)


def share_of_keys(keys: np.ndarray, documents: int) -> HeldShare | None:
    """Returns the smallest share, rounded up to two digits, that holds out at least `documents` of the given keys.

    Returns:
        The share and the number of documents that it holds out; None if no document would remain to train on.
    """
    keys = np.sort(keys)
    if len(keys) <= documents:
        return None
    least = (int(keys[documents - 1]) + 1) / 2**64
    digit = 10.0 ** (floor(log10(least)) - 1)
    share = float(f"{ceil(least / digit) * digit:.2g}")
    held = int(in_share(keys, share).sum()) if share < 1 else len(keys)
    return HeldShare(share, held) if documents <= held < len(keys) else None


@dataclass(frozen=True)
class Measured:
    """Keys of the held-out documents of prepared corpora.

    Calling the object with a text returns the reason to drop the text if it has one of these keys.

    Processes of a machine share the array of keys.
    """

    keys: np.ndarray
    """Keys of the held-out documents, sorted and unique: uint64 [documents]."""

    @classmethod
    def of(cls, folders: Iterable[Path]) -> "Measured":
        """Reads the keys of the held-out documents in folders of stage `prepare`.

        Raises:
            DataError: a shard cannot be read.
        """
        by_shard = [keys for folder in folders for keys in _keys(folder, HELDOUT_GLOB)]
        return cls(np.unique(np.concatenate([np.zeros(0, np.uint64), *by_shard])))

    def __call__(self, text: str) -> Drop | None:
        """Returns the reason to drop a document if losses are measured on the same text; otherwise None."""
        return self.many([text])[0]

    def many(self, texts: Sequence[str]) -> list[Drop | None]:
        """Returns, for each document, the reason to drop it if losses are measured on the same text; otherwise None."""
        return [MEASURED if is_measured else None for is_measured in self._are_measured(keys_of(texts))]

    def has(self, key: int) -> bool:
        """Returns whether losses are measured on a document with this key."""
        return bool(self._are_measured(np.array([key], np.uint64))[0])

    def count_in(self, trained: Sequence[Path]) -> int:
        """Counts the held-out documents that also occur in the training text of other prepared corpora.

        Reads the keys of the training documents one shard at a time.
        """
        by_shard = [np.zeros(0, np.uint64)]
        by_shard += [
            np.unique(keys[self._are_measured(keys)]) for folder in trained for keys in _keys(folder, SHARD_GLOB)
        ]
        return len(np.unique(np.concatenate(by_shard)))

    def _are_measured(self, keys: np.ndarray) -> np.ndarray:
        """Returns, for each key, whether it is the key of a held-out document: bool [keys]."""
        if not len(self.keys):
            return np.zeros(len(keys), bool)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        same: np.ndarray = self.keys[places] == keys
        return same


def _keys(folder: Path, pattern: str) -> Iterator[np.ndarray]:
    """Yields a copy of the keys of the documents of each shard, so that no shard stays mapped into memory."""
    for path in sorted(folder.glob(pattern)):
        try:
            yield token_shards.read_batch(path).column(KEYS).to_numpy().copy()
        except (OSError, KeyError, pa.ArrowException) as error:
            raise token_shards.shard_error(path, error) from error


BY_REASON = ("dropped", "changed", "bad")
"""Metrics that count dropped, changed and unreadable documents, keyed by reason."""


def gather(sources: Sequence[Record], folder: Path) -> dict[str, Any]:
    """Links the held-out shards of several sources into `folder`, in the order of the sources, and sums their metrics.

    Returns:
        The sums of the metrics that are integers or are in BY_REASON; `legibility`, how the tokenizer splits the words
            of all sources; and `profile`, the languages, duplicates and repeated lines of all sources together.
    """
    with storage_errors(folder):
        for number, source in enumerate(sources):
            for shard in sorted(source.path.glob(HELDOUT_GLOB)):
                link_or_copy(shard, folder / shard.name.replace("-", f"-{number:03d}-", 1))
    names = dict.fromkeys(name for source in sources for name in source.metrics)
    values = {name: [source.metrics.get(name, 0) for source in sources] for name in names}
    sums = {name: sum(counts) for name, counts in values.items() if all(type(value) is int for value in counts)}
    counted = {name: values[name] for name in BY_REASON if name in values}
    reasons = {name: _added(counts) for name, counts in counted.items() if all(type(of) is dict for of in counts)}
    legibility = text_profile.Legibility.together(source.metrics.get("legibility") for source in sources)
    profile = text_profile.joined_profiles([text_profile.read_profile(source.metrics) for source in sources])
    measured = {"legibility": legibility, "profile": profile}
    return {**sums, **reasons, **{name: value for name, value in measured.items() if value}}


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Adds up the document counts of several sources, separately for each reason."""
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return dict(total)
