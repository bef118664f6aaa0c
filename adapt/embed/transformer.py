"""Embedder `transformer`: the states that a model gives to a text's tokens, in one vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from adapt.config.fields import PositiveInt, how
from adapt.embed.base import EmbeddedTexts, Embedder
from adapt.embed.tokens import TextTokens

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
    """The mean of the states of one layer, or that of the first token."""

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

        from adapt.model.base import load_base
        from adapt.model.limits import max_sequence_length
        from adapt.model.outputs.features import check_layer

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
        from adapt.model.outputs.features import text_features

        options = self.options
        tokens, seen, unknown = self._tokens.whole(texts)
        vectors = text_features(
            self._model, tokens, self._device, self._length, options.texts_at_once, options.pooling, options.layer
        )
        return EmbeddedTexts(vectors, seen, unknown)
