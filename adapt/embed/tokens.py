"""The tokens of texts, for embedders that read a model."""

import os
from collections.abc import Sequence

import numpy as np

from adapt.model.locate import Pretrained
from adapt.model.tokenize.ragged import IDS


class TextTokens:
    """Tokenizes as the corpus is tokenized; kept by the process, since it remembers the pieces of texts.

    Args:
        pretrained: has the tokenizer.

    Raises:
        ModelError: there is no tokenizer, or it is not the model's.
    """

    def __init__(self, pretrained: Pretrained) -> None:
        os.environ["RAYON_NUM_THREADS"] = "1"  # the tasks are the parallelism
        from adapt.model.tokenize.portable import text_tokenizer
        from adapt.model.tokenize.quick import QuickTokenizer

        tokenizer = text_tokenizer(pretrained)
        self._quick = QuickTokenizer(tokenizer.backend)
        self._unknown = tokenizer.unknown
        self._special = np.array(tokenizer.backend.encode("").ids, np.int64)

    def whole(self, texts: Sequence[str]) -> tuple[list[np.ndarray], int, int]:
        """The ids of each text with its special tokens, the number of all, and of those that are unknown."""
        found = self._quick(texts)
        return found.lists(IDS), *self._counted(found.columns[IDS])

    def without_special(self, texts: Sequence[str]) -> tuple[list[np.ndarray], int, int]:
        """The same without special tokens, of which a text itself has none."""
        found = self._quick(texts)
        ids = found.columns[IDS]
        kept = ~np.isin(ids, self._special)
        ends = np.concatenate([[0], np.cumsum(kept)])[found.bounds]
        return np.split(ids[kept], ends[1:-1]), *self._counted(ids[kept])

    def _counted(self, ids: np.ndarray) -> tuple[int, int]:
        return len(ids), 0 if self._unknown is None else int(np.count_nonzero(ids == self._unknown))
