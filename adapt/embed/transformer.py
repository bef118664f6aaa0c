"""Embedder `transformer`: averages a model's hidden states over the tokens of a text.

Class `TextTokens` tokenizes texts for this embedder and for `static`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from adapt.config.fields import PositiveInt, how
from adapt.embed.embedder import EmbeddedTexts, Embedder
from adapt.model.architecture import max_sequence_length
from adapt.model.locate import Pretrained
from adapt.model.tokenize.ragged import IDS
from adapt.model.tokenize.text_tokenizer import QuickTokenizer, text_tokenizer

LENGTHS = {"mean": 32, "first": 512}
"""Default number of tokens per piece, keyed by pooling."""


@dataclass(frozen=True)
class TransformerOptions:
    """Options of the embedder `transformer`: the model, and the hidden states that represent a text."""

    path: str | None = None
    """Folder or Hugging Face id of the model; null takes model.path."""
    layer: int = -1
    """Layer whose hidden states are used: 0 is the embeddings, -1 the last layer."""
    pooling: Literal["mean", "first"] = "mean"
    """`mean` averages the states of all tokens of the text; `first` takes the state of the first token."""
    sequence_length: PositiveInt | None = None
    """Largest number of tokens of a piece; longer texts are split into pieces. At most the model's longest input. null
    is 32 for `mean`, because hidden states depend on the length of the input: only short pieces make a long document
    similar to a sentence on the same subject. null is 512 for `first`, which uses only the first piece."""
    texts_at_once: PositiveInt = how(32)
    """Number of texts or pieces per forward pass. They are sorted by length and packed without padding. Lower this
    number if memory is short."""


class TransformerMean(Embedder):
    """Embeds a text by a model's hidden states: their mean in one layer, or the state of the first token."""

    Options = TransformerOptions
    reads_model = True
    packages = ("tokenizers",)

    def load(self, folder: Path | None) -> None:
        """Loads the model and its tokenizer, on the GPU that this process may use, or else on the CPU.

        Raises:
            ModelError: the model cannot be read, or its attention cannot be restricted to single documents.
            ConfigError: the model has no such layer.
        """
        import torch

        from adapt.model import load, states

        assert self.pretrained is not None
        self._tokens = TextTokens(self.pretrained)
        model = load.load_base(self.pretrained.model, self.pretrained.trust_remote_code)
        states.check_layer(model, self.options.layer, "layer of the embedder transformer")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        longest = max_sequence_length(self.pretrained.model)
        length = self.options.sequence_length or LENGTHS[self.options.pooling]
        self._length = min(length, longest or length)
        self._features = partial(
            states.text_features,
            torch.nn.Module.to(model, device),
            device=device,
            length=self._length,
            at_once=self.options.texts_at_once,
            pooling=self.options.pooling,
            layer=self.options.layer,
        )

    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """Runs the model on the texts and returns their vectors."""
        tokens, seen, unknown = self._tokens.whole(texts)
        return EmbeddedTexts(self._features(tokens), seen, unknown)


class TextTokens:
    """Tokenizes texts in the same way as the corpus.

    Keep one object as long as the process runs, because the object caches the tokens of words.

    Args:
      pretrained: model with its tokenizer.

    Raises:
      ModelError: the tokenizer is missing, or is not the model's tokenizer.
    """

    def __init__(self, pretrained: Pretrained) -> None:
        os.environ["RAYON_NUM_THREADS"] = "1"  # one thread, because tasks already run in parallel

        tokenizer = text_tokenizer(pretrained)
        self._quick = QuickTokenizer(tokenizer.backend)
        self._unknown = tokenizer.unknown
        self._special = np.array(tokenizer.backend.encode("").ids, np.int64)

    def whole(self, texts: Sequence[str]) -> tuple[list[np.ndarray], int, int]:
        """Returns each text's token ids with special tokens, the number of all tokens, and that of unknown tokens."""
        found = self._quick(texts)
        return found.lists(IDS), *self._counted(found.columns[IDS])

    def without_special(self, texts: Sequence[str]) -> tuple[list[np.ndarray], int, int]:
        """Returns each text's token ids without special tokens, the number of these, and that of unknown tokens."""
        found = self._quick(texts)
        ids = found.columns[IDS]
        kept = ~np.isin(ids, self._special)
        ends = np.concatenate([[0], np.cumsum(kept)])[found.bounds]
        return np.split(ids[kept], ends[1:-1]), *self._counted(ids[kept])

    def _counted(self, ids: np.ndarray) -> tuple[int, int]:
        return len(ids), 0 if self._unknown is None else int(np.count_nonzero(ids == self._unknown))
