"""Which documents are measured, so that no text is both measured and trained on.

A document is known by its key, a 64-bit hash of its normalised text. Two rules keep measured and trained text apart,
whatever file either comes from: the held-out share of a corpus are the documents with the smallest keys, and every
corpus of a configuration leaves out the same share; and where text is measured as a whole (general text, the dev split
of a task), what is trained on leaves out every document whose key is among the measured.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, floor, log10
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from adapt.corpus.cleaning.block import Drop
from adapt.corpus.shingles import normalised, normalised_texts
from adapt.support.errors import DataError
from adapt.support.schema import HELDOUT_GLOB, KEYS, SHARD_GLOB

MEASURED = Drop("measured")
"""The document, or one like it, is measured, so it is not trained on."""
TRAINED = Drop("trained on elsewhere")
"""The document would be measured, but one like it is trained on in a corpus that comes before."""


def key_of(text: str) -> int:
    """What a document is known by, whatever its case, spaces and Unicode form."""
    return int(keys_of_normalised([normalised(text).encode("utf-8", "replace")])[0])


def keys_of(texts: Sequence[str]) -> np.ndarray:
    """What each document is known by: uint64 [documents]."""
    return keys_of_normalised(normalised_texts(texts))


def keys_of_normalised(texts: Sequence[bytes]) -> np.ndarray:
    """The same of texts that are normalised already, in UTF-8."""
    return np.frombuffer(b"".join(blake2b(text, digest_size=8).digest() for text in texts), ">u8").astype(np.uint64)


def in_share(keys: np.ndarray, fraction: float) -> np.ndarray:
    """Which documents belong to the held-out share: a function of their texts, so that copies go with them."""
    share: np.ndarray = keys < ceil(fraction * 2**64)  # as whole numbers, of which float64 cannot hold them all
    return share


def is_heldout(text: str, fraction: float) -> bool:
    """The same of one text."""
    return key_of(text) < fraction * 2**64


class HeldShare(NamedTuple):
    """A share of the documents to hold out, and how many documents it holds out."""

    share: float
    documents: int


def share_holding(folders: Iterable[Path], documents: int) -> HeldShare | None:
    """Returns the smallest share of two digits that holds out at least some number of documents.

    Args:
        folders: prepared corpora, whose documents are known by their keys.
        documents: how many are wanted.

    Returns:
        None where nothing would be left to train on.

    Raises:
        DataError: a shard cannot be read.
    """
    by_shard = [keys for folder in folders for pattern in (SHARD_GLOB, HELDOUT_GLOB) for keys in _keys(folder, pattern)]
    return share_of_keys(np.concatenate([np.zeros(0, np.uint64), *by_shard]), documents)


def share_of_keys(keys: np.ndarray, documents: int) -> HeldShare | None:
    """Returns the smallest share of two digits that holds out at least some number of documents, of these keys.

    Args:
        keys: of all documents, as of `keys_of`.
        documents: how many are wanted.

    Returns:
        None where nothing would be left to train on.
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
    """The measured documents of some prepared corpora: 8 bytes each, which processes of a machine share."""

    keys: np.ndarray
    """Sorted, each once: uint64."""

    @classmethod
    def of(cls, folders: Iterable[Path]) -> "Measured":
        """The documents measured by folders of stage `prepare`.

        Raises:
            DataError: a shard cannot be read.
        """
        by_shard = [keys for folder in folders for keys in _keys(folder, HELDOUT_GLOB)]
        return cls(np.unique(np.concatenate([np.zeros(0, np.uint64), *by_shard])))

    def __call__(self, text: str) -> Drop | None:
        """The reason to drop a document that is measured."""
        return self.many([text])[0]

    def many(self, texts: Sequence[str]) -> list[Drop | None]:
        """The same of many documents."""
        return [MEASURED if among else None for among in self._among(keys_of(texts))]

    def count_in(self, trained: Sequence[Path]) -> int:
        """How many of them stand in the training text of some prepared corpora, whose keys are read shard by shard."""
        by_shard = [np.zeros(0, np.uint64)]
        by_shard += [np.unique(keys[self._among(keys)]) for folder in trained for keys in _keys(folder, SHARD_GLOB)]
        return len(np.unique(np.concatenate(by_shard)))

    def _among(self, keys: np.ndarray) -> np.ndarray:
        if not len(self.keys):
            return np.zeros(len(keys), bool)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        same: np.ndarray = self.keys[places] == keys
        return same


def _keys(folder: Path, pattern: str) -> Iterator[np.ndarray]:
    """The keys of each shard, mapped into memory."""
    for path in sorted(folder.glob(pattern)):
        try:
            with pa.memory_map(str(path)) as source:
                yield pa.ipc.open_file(source).get_batch(0).column(KEYS).to_numpy()
        except (OSError, KeyError, pa.ArrowException) as error:
            raise DataError(
                f"{path} cannot be read: {error}", f"delete {folder} to prepare the corpus again"
            ) from error
