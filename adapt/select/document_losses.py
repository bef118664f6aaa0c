"""Computes losses of a language model on raw documents, for selection `perplexity` and for comparing samples.

This module loads torch.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch

from adapt.config import Config
from adapt.evaluate.evaluation_task import Ready, ready
from adapt.evaluate.losses import loss_on, losses_on
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenize.piece_tokenizer import IDS
from adapt.model.tokenize.text_tokenizer import QuickTokenizer
from adapt.model.tokenizer import load_text_tokenizer
from adapt.select.pool import Document
from adapt.support.splitmix import mix

MEASURED_TOKENS = 20_000
"""Number of tokens of each sample on which a model's loss is measured. The number is rounded up to whole documents."""


class DocumentLosses:
    """Computes the losses of a model on documents.

    Texts are truncated to `most` tokens.
    """

    def __init__(self, pretrained: Pretrained, config: Config, most: int) -> None:
        self._ready = _loaded(pretrained, config.objective.kind == "causal")
        self._config, self._most = config, most
        self._special = self._ready.tokenizer.all_special_ids
        self._quick = QuickTokenizer(load_text_tokenizer(pretrained).backend_tokenizer)

    def __call__(self, documents: Sequence[Document]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean loss of each document and the number of its predictions.

        The losses are in nats per predicted token, float64 [n]; NaN if nothing can be predicted.

        The ids of the documents determine the masks.
        """
        tokens = [
            ids[: self._most].astype(np.int64) for ids in self._quick([str(text) for text in documents]).lists(IDS)
        ]
        model, tokenizer, device = self._ready.model, self._ready.tokenizer, self._ready.device
        numbers = mask_numbers([document.id for document in documents])
        losses, counts = losses_on(tokens, numbers, model, tokenizer, self._config, device)
        has_tokens = [not np.isin(ids, self._special).all() for ids in tokens]
        known = (counts > 0) & np.array(has_tokens, bool)
        found: np.ndarray = np.divide(losses, counts, out=np.full(len(documents), np.nan), where=known)
        return found, np.asarray(counts)


@lru_cache(maxsize=2)
def _loaded(pretrained: Pretrained, causal: bool) -> Ready:
    """Loads a model, and caches it for later calls in the same process."""
    return ready(pretrained, causal)


def mask_numbers(ids: Sequence[int]) -> list[int]:
    """Returns a number below 2^40 for each document id. The number determines the masks of the document.

    `losses_on` accepts numbers up to 2^43.
    """
    numbers: np.ndarray = mix(np.array(ids, np.uint64)) >> np.uint64(24)
    return [int(number) for number in numbers]


def sample_losses(config: Config, pretrained: Pretrained, samples: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Measures a model's held-out loss on the first texts of each sample, on the CPUs of this process.

    The result is in nats per predicted token, keyed by the name of the sample.
    """
    tokenizer = load_text_tokenizer(pretrained)
    quick = QuickTokenizer(tokenizer.backend_tokenizer)
    model = load_model(pretrained.model, config.objective.kind == "causal", pretrained.trust_remote_code)
    found = {}
    for name, texts in samples.items():
        tokens: list[np.ndarray] = []
        for text in texts:
            if sum(map(len, tokens)) >= MEASURED_TOKENS:
                break
            tokens += [ids.astype(np.int64) for ids in quick([text]).lists(IDS)]
        found[name] = loss_on(tokens, model, tokenizer, config, torch.device("cpu"))
    return found
