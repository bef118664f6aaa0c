"""Defines `transformer` and `static`, the embedders that average token vectors. `TextTokens` tokenizes for both.

`transformer` averages a model's hidden states over the tokens of a text.

`static` averages the input embeddings of a text's tokens, with weights. No layer of the model is run. The vectors are
smooth inverse frequency embeddings (SIF; Arora et al. 2017, "A Simple but Tough-to-Beat Baseline for Sentence
Embeddings"): a token that makes up a share p of all tokens has the weight a / (a + p), and the first principal
component of all vectors is removed from each vector. Unlike in the paper, a long text is cut into windows, and the
vector of the text is the mean of the vectors of its windows. Without windows, the vector of a long text would be close
to the mean of all vectors, so the nearest neighbours of a short text would all be short.

The model of `static` may be a Hugging Face `transformers` model, or a table of model2vec embeddings, which already
contain token weights. In names such as `is_distilled` and `DistilledMeans`, "distilled" means such a table.
"""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from adapt.config.fields import PositiveFloat, PositiveInt, how
from adapt.embed.embedder import EmbeddedTexts, Embedder
from adapt.index.exact_search import scaled
from adapt.model.architecture import max_sequence_length
from adapt.model.locate import WEIGHTS, Pretrained
from adapt.model.tokenize.piece_tokenizer import IDS
from adapt.model.tokenize.text_tokenizer import QuickTokenizer, text_tokenizer
from adapt.support.errors import ConfigError, DataError, ModelError

LENGTHS = {"mean": 32, "first": 512}
"""Default number of tokens per piece, keyed by pooling."""


@dataclass(frozen=True)
class TransformerOptions:
    """Options of the embedder `transformer`: the model, and the hidden states that represent a text."""

    path: str | None = None
    """Folder or Hugging Face id of the model; null uses model.path."""
    layer: int = -1
    """Layer whose hidden states are used: 0 is the embeddings, -1 the last layer."""
    pooling: Literal["mean", "first"] = "mean"
    """`mean` averages the states of all tokens of the text; `first` takes the state of the first token."""
    sequence_length: PositiveInt | None = None
    """Maximum number of tokens in a piece; longer texts are split into pieces. The value is capped at the model's
    maximum input length. null means 32 for `mean`, because hidden states depend on the length of the input: a long
    document is only similar to a sentence on the same subject if the document is split into short pieces. null means
    512 for `first`, which uses only the first piece."""
    texts_at_once: PositiveInt = how(32)
    """Number of texts or pieces of texts per forward pass. They are sorted by length and packed without padding. Reduce
    this number if the device runs out of memory."""


class TransformerMean(Embedder):
    """Embeds a text by a model's hidden states: their mean in one layer, or the state of the first token."""

    Options = TransformerOptions
    reads_model = True
    batch_field = "transformer.texts_at_once"
    packages = ("tokenizers",)

    def load(self, folder: Path | None) -> None:
        """Loads the model, on this process's GPU if it has one, else on the CPU, and the model's tokenizer.

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

    Reuse one object for the whole process, because the object caches the tokens of words.

    Raises:
      ModelError: the tokenizer is missing, or is not the model's tokenizer.
    """

    def __init__(self, pretrained: Pretrained) -> None:
        os.environ["RAYON_NUM_THREADS"] = "1"  # the tokenizer uses one thread, because tasks already run in parallel

        tokenizer = text_tokenizer(pretrained)
        self._quick = QuickTokenizer(tokenizer.backend)
        self._unknown = tokenizer.unknown
        self._special = np.array(tokenizer.backend.encode("").ids, np.int64)

    def whole(self, texts: Sequence[str]) -> tuple[list[np.ndarray], int, int]:
        """Returns each text's token ids with special tokens, the number of tokens, and the number of unknown tokens."""
        found = self._quick(texts)
        return found.lists(IDS), *self._counted(found.columns[IDS])

    def without_special(self, texts: Sequence[str]) -> tuple[list[np.ndarray], int, int]:
        """Returns each text's token ids without special tokens, and the numbers of all and of unknown tokens."""
        found = self._quick(texts)
        ids = found.columns[IDS]
        kept = ~np.isin(ids, self._special)
        ends = np.concatenate([[0], np.cumsum(kept)])[found.bounds]
        return np.split(ids[kept], ends[1:-1]), *self._counted(ids[kept])

    def _counted(self, ids: np.ndarray) -> tuple[int, int]:
        return len(ids), 0 if self._unknown is None else int(np.count_nonzero(ids == self._unknown))


COMMON_FILE = "static.safetensors"
WINDOW = 32
"""Maximum number of tokens in a window, equal to the default piece length of the embedder `transformer`."""
LEAST_SECOND = 1e-6
"""The first component is removed only if the second component's variance exceeds this share of the first component's
variance. Otherwise, almost nothing would remain of the vectors."""


@dataclass(frozen=True)
class StaticOptions:
    """Options of the embedder `static`: the model whose embeddings are averaged, and the weights of tokens."""

    path: str | None = None
    """Folder or Hugging Face id of a model, or of model2vec embeddings; null uses model.path."""
    smoothing: PositiveFloat = 1e-3
    """Parameter a of SIF. A token that makes up this share of all tokens has half the weight of a very rare token.
    Embeddings of model2vec keep their own weights."""
    sample_documents: PositiveInt = 2000
    """Number of texts per source from which token shares and the removed component are learned. A small number is
    enough, because only the shares of frequent tokens matter. A small number also makes the samples of a small target
    and a large pool equal in size."""
    texts_at_once: PositiveInt = how(1000)
    """Number of 32-token windows per batch; with model2vec, number of texts per batch. Reduce this number if the device
    runs out of memory."""


class StaticMean(Embedder):
    """Embeds a text by the weighted mean of its tokens' input embeddings (SIF), without running the model."""

    Options = StaticOptions
    reads_model = True
    learns = True
    batch_field = "static.texts_at_once"
    packages = ("tokenizers",)

    def check(self) -> None:
        """Checks that model2vec is installed if the model is a table of model2vec embeddings."""
        if self._is_distilled:
            check_package(self._model.model)

    def learn(self, texts: Sequence[str], folder: Path) -> dict[str, float]:
        """Learns token weights and the first component from a sample. Does nothing for model2vec embeddings.

        Raises:
          DataError: the sample has no token.
        """
        if self._is_distilled:
            return {}
        common, figures = TokenMeans(self._model).common(texts, self.options.smoothing, self.options.texts_at_once)
        save_file(common._asdict(), folder / COMMON_FILE)
        return figures

    def load(self, folder: Path | None) -> None:
        """Reads the embeddings, and the learned weights and component."""
        if self._is_distilled:
            self._means: DistilledMeans | TokenMeans = DistilledMeans(self._model.model)
        else:
            assert folder is not None
            self._means = TokenMeans(self._model, Common(**load_file(folder / COMMON_FILE)))

    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """Returns the vectors of the texts. A text that has only special tokens has the vector 0."""
        return self._means(texts, self.options.texts_at_once)

    @property
    def _model(self) -> Pretrained:
        assert self.pretrained is not None
        return self.pretrained

    @property
    def _is_distilled(self) -> bool:
        return self.pretrained is not None and is_distilled(self.pretrained.model)


class Common(NamedTuple):
    """Values learned from a sample of texts: the token weights, and the direction that is removed from vectors."""

    weights: np.ndarray
    """Weight of each token of the vocabulary, float32 [tokens]."""
    component: np.ndarray
    """Direction that is removed from the vector of each window, float32 [d]. Its length is 1, or 0 if nothing is
    removed."""


class TokenMeans:
    """Computes weighted means of a model's input embeddings.

    `common` is None while the weights and the component are learned.

    Raises:
        ModelError: the model cannot be read.
    """

    def __init__(self, pretrained: Pretrained, common: Common | None = None) -> None:
        from adapt.model.load import load_base

        self._tokens = TextTokens(pretrained)
        model: Any = load_base(pretrained.model, pretrained.trust_remote_code)
        self._table = model.get_input_embeddings().weight.detach().float().numpy()
        self._common = common

    def common(self, texts: Sequence[str], smoothing: float, at_once: int) -> tuple[Common, dict[str, float]]:
        """Learns token weights and the first component from texts. Returns them with metrics.

        The metrics are the number of tokens, and the share of the variance of the vectors that the first component
        explains.

        Raises:
          DataError: the texts have no token.
        """
        tokens, seen, _ = self._tokens.without_special(texts)
        if not seen:
            raise DataError(f"none of {len(texts)} texts has a token to learn from", "check the texts")
        ids = np.concatenate(tokens).astype(np.int64)
        shares = np.bincount(ids, minlength=len(self._table)) / len(ids)
        weights = (smoothing / (smoothing + shares)).astype(np.float32)
        moment = np.zeros((self._table.shape[1],) * 2)
        for _, vectors in self._windows(tokens, weights, at_once):
            moment += vectors.T @ vectors
        variances, components = np.linalg.eigh(moment)
        has_second = len(variances) > 1 and variances[-2] > LEAST_SECOND * variances[-1]
        component = components[:, -1] if has_second else np.zeros(len(moment))
        figures = {"tokens": float(seen), "component_share": float(variances[-1] / max(variances.sum(), 1e-12))}
        return Common(weights, component.astype(np.float32)), figures

    def __call__(self, texts: Sequence[str], at_once: int) -> EmbeddedTexts:
        """Returns, for each text, the mean of the vectors of its windows.

        The vector of a window is scaled to length 1, then the component is removed.
        """
        assert self._common is not None
        tokens, seen, unknown = self._tokens.without_special(texts)
        vectors, component = np.zeros((len(texts), self._table.shape[1])), self._common.component.astype(np.float64)
        for owners, some in self._windows(tokens, self._common.weights, at_once):
            firsts = np.flatnonzero(np.diff(owners, prepend=-1))
            rest = some - (some @ component)[:, None] * component
            vectors[owners[firsts]] += np.add.reduceat(rest, firsts)
        return EmbeddedTexts((vectors / _windows_of(tokens)[:, None]).astype(np.float32), seen, unknown)

    def _windows(
        self, tokens: Sequence[np.ndarray], weights: np.ndarray, at_once: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the vectors of the windows of all texts, in batches of `at_once` windows.

        Yields:
          For each window of the batch, the index of its text (in ascending order) and its vector of length 1, float64
          [n, d].
        """
        from scipy.sparse import csr_array

        if not tokens:
            return
        lengths, counts = np.array([len(ids) for ids in tokens]), _windows_of(tokens)
        owners = np.repeat(np.arange(len(tokens)), counts)
        positions = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        # start of each window in its text; the lengths of a text's windows differ by at most 1
        within = positions * lengths[owners] // counts[owners]
        bounds = np.append(np.repeat(np.cumsum(lengths) - lengths, counts) + within, lengths.sum())
        ids = np.concatenate(tokens).astype(np.int64)
        for start in range(0, len(owners), at_once):
            ends = bounds[start : start + at_once + 1]
            some = ids[ends[0] : ends[-1]]
            shape = (len(ends) - 1, len(self._table))
            yield (
                owners[start : start + at_once],
                scaled(csr_array((weights[some], some, ends - ends[0]), shape=shape) @ self._table),
            )


def _windows_of(tokens: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the number of windows of each text, at least one, int64 [texts]."""
    return np.array([max(1, -(-len(ids) // WINDOW)) for ids in tokens], np.int64)


PACKAGE = "model2vec"
EMBEDDINGS = "embeddings"
"""Name of the tensor that holds model2vec embeddings. No transformers model has a tensor of this name."""


def is_distilled(folder: Path) -> bool:
    """Returns whether a folder contains model2vec embeddings instead of a model."""
    if not (folder / WEIGHTS).is_file():
        return False
    try:
        with safe_open(folder / WEIGHTS, "np") as tensors:
            return EMBEDDINGS in set(tensors.keys())
    except SafetensorError:  # the file is damaged; the error is reported when the model is loaded
        return False


def check_package(folder: Path) -> None:
    """Checks that model2vec is installed.

    Raises:
        ConfigError: model2vec is not installed.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise ConfigError(
            f"{folder} is a model2vec model, but the package model2vec is not installed",
            "run pip install 'dontstop[model2vec]', or choose another model for the embedder static",
        )


class DistilledMeans:
    """Computes the mean of the model2vec embeddings of a text's tokens. The table contains the weights of tokens.

    Raises:
        ConfigError: model2vec is not installed.
        ModelError: the folder cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        check_package(folder)
        from model2vec import StaticModel

        try:
            self._model = StaticModel.from_pretrained(folder, normalize=False, max_length=None)
        except Exception as error:  # catches every type of error, because model2vec uses several libraries
            raise ModelError(
                f"{folder} cannot be read by model2vec: {error}", "copy or distil the model again"
            ) from error

    def __call__(self, texts: Sequence[str], at_once: int) -> EmbeddedTexts:
        """Returns the vectors of the texts. A text without a known token has the vector 0."""
        vectors = self._model.encode(list(texts), batch_size=at_once, use_multiprocessing=False)
        encodings = self._model.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        tokens = [encoding.ids for encoding in encodings]
        unknown = sum(number == self._model.unk_token_id for ids in tokens for number in ids)
        return EmbeddedTexts(np.asarray(vectors, np.float32), sum(map(len, tokens)), unknown)
