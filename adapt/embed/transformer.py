"""Embedder `transformer`: the mean of the states that a model gives to the tokens of a text.

`TextTokens` tokenizes for all embedders that read a model.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from adapt.config.fields import PositiveInt, how
from adapt.embed.embedder import EmbeddedTexts, Embedder
from adapt.model.architecture import max_sequence_length
from adapt.model.locate import Pretrained
from adapt.model.tokenize.ragged import IDS

LENGTHS = {"mean": 32, "first": 512}
"""Tokens of a piece, where none are set."""


@dataclass(frozen=True)
class TransformerOptions:
    """Which states are taken."""

    path: str | None = None
    """Folder or Hugging Face id of the model; null is model.path."""
    layer: int = -1
    """The layer whose states are taken: 0 is the embeddings, -1 the last layer."""
    pooling: Literal["mean", "first"] = "mean"
    """`mean`: over all tokens of the text; `first`: the first token alone."""
    sequence_length: PositiveInt | None = None
    """Longer texts pass in pieces of this many tokens, or of as many as the model takes. null is 32 for `mean`, since
    states depend on the length of what passes: only so is a long document like a sentence on the same subject. For
    `first`, which sees the first piece alone, null is 512."""
    texts_at_once: PositiveInt = how(32)
    """Texts or pieces that pass through a device at once, packed without padding, those of about one length together.
    """


class TransformerMean(Embedder):
    """Embeds a text by a model's hidden states: their mean in one layer, or the state of the first token."""

    Options = TransformerOptions
    reads_model = True
    packages = ("tokenizers",)

    def load(self, folder: Path | None) -> None:
        """Reads the model onto the device.

        Raises:
            ModelError: it cannot be read, or its attention cannot be kept inside documents.
            ConfigError: it has no such layer.
        """
        import torch

        from adapt.model.load import load_base
        from adapt.model.states import check_layer

        assert self.pretrained is not None
        self._tokens = TextTokens(self.pretrained)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = load_base(self.pretrained.model, self.pretrained.trust_remote_code)
        check_layer(model, self.options.layer, "layer of the embedder transformer")
        self._model = torch.nn.Module.to(model, self._device)
        longest = max_sequence_length(self.pretrained.model)
        length = self.options.sequence_length or LENGTHS[self.options.pooling]
        self._length = min(length, longest or length)

    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """Passes the texts."""
        from adapt.model.states import text_features

        options = self.options
        tokens, seen, unknown = self._tokens.whole(texts)
        vectors = text_features(
            self._model, tokens, self._device, self._length, options.texts_at_once, options.pooling, options.layer
        )
        return EmbeddedTexts(vectors, seen, unknown)


class TextTokens:
    """Tokenizes as the corpus is tokenized; kept by the process, since it remembers the pieces of texts.

    Args:
        pretrained: has the tokenizer.

    Raises:
        ModelError: there is no tokenizer, or it is not the model's.
    """

    def __init__(self, pretrained: Pretrained) -> None:
        os.environ["RAYON_NUM_THREADS"] = "1"  # the tasks are the parallelism
        from adapt.model.tokenize.text_tokenizer import QuickTokenizer, text_tokenizer

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
