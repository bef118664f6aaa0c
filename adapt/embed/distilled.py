"""Static embeddings that were distilled from a sentence encoder by model2vec; the package (an extra) reads them."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adapt.embed.embedder import EmbeddedTexts
from adapt.model.locate import WEIGHTS
from adapt.support.errors import ConfigError, ModelError

PACKAGE = "model2vec"
EMBEDDINGS = "embeddings"
"""The tensor that such a folder has, and no model of transformers."""


def is_distilled(folder: Path) -> bool:
    """Whether a folder holds embeddings of model2vec, and no model."""
    from safetensors import SafetensorError, safe_open

    if not (folder / WEIGHTS).is_file():
        return False
    try:
        with safe_open(folder / WEIGHTS, "np") as tensors:
            return EMBEDDINGS in set(tensors.keys())
    except SafetensorError:  # whoever loads the model says so
        return False


def check_package(folder: Path) -> None:
    """Looks for the package.

    Raises:
        ConfigError: it is not installed.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise ConfigError(
            f"{folder} holds embeddings of model2vec, which is not installed",
            "pip install 'dontstop[model2vec]', or name another model for the embedder static",
        )


class DistilledMeans:
    """Means of the distilled embeddings of a text's tokens, weighed as its model says. All of a text counts.

    Args:
        folder: of the model.

    Raises:
        ConfigError: model2vec is not installed.
        ModelError: the folder cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        check_package(folder)
        from model2vec import StaticModel

        try:
            self._model = StaticModel.from_pretrained(folder, normalize=False, max_length=None)
        except Exception as error:  # of several libraries
            raise ModelError(f"{folder} cannot be read by model2vec: {error}", "copy or distil it again") from error

    def __call__(self, texts: Sequence[str], at_once: int) -> EmbeddedTexts:
        """A text without a known token has the vector 0."""
        vectors = self._model.encode(list(texts), batch_size=at_once, use_multiprocessing=False)
        tokens = [each.ids for each in self._model.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        unknown = sum(number == self._model.unk_token_id for ids in tokens for number in ids)
        return EmbeddedTexts(np.asarray(vectors, np.float32), sum(map(len, tokens)), unknown)
