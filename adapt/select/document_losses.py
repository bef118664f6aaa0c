"""Losses of a language model on raw documents: those that selection `perplexity` scores by, and those of samples.

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
from adapt.model.tokenize.ragged import IDS
from adapt.model.tokenize.text_tokenizer import QuickTokenizer
from adapt.model.tokenizer import load_text_tokenizer
from adapt.select.pool import Document
from adapt.support.splitmix import mix

MEASURED_TOKENS = 20_000
"""Tokens of each sample that a model's loss is measured on, to within a document."""


class DocumentLosses:
    """The losses of a model.

    Args:
        pretrained: the model.
        config: the job's; has the objective.
        most: tokens of a text.
    """

    def __init__(self, pretrained: Pretrained, config: Config, most: int) -> None:
        self._ready = _loaded(pretrained, config.objective.kind == "causal")
        self._config, self._most = config, most
        self._special = self._ready.tokenizer.all_special_ids
        self._quick = QuickTokenizer(load_text_tokenizer(pretrained).backend_tokenizer)

    def __call__(self, documents: Sequence[Document]) -> tuple[np.ndarray, np.ndarray]:
        """The mean loss of each document [nats a predicted token], float64 [n], and the number of predictions, [n].

        The loss is NaN where nothing can be predicted.

        Args:
            documents: texts; their ids decide their masks.
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
    """A model, which a process keeps for the next pass."""
    return ready(pretrained, causal)


def mask_numbers(ids: Sequence[int]) -> list[int]:
    """A number below 2^40 for each id, by which masks are drawn: their addresses hold no larger ones."""
    numbers: np.ndarray = mix(np.array(ids, np.uint64)) >> np.uint64(24)
    return [int(number) for number in numbers]


def sample_losses(config: Config, pretrained: Pretrained, samples: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """A model's held-out loss on the first texts of each sample [nats a predicted token], on the CPUs of this process.

    Args:
        config: `evaluation` and `objective`.
        pretrained: the model.
        samples: texts by name.
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
