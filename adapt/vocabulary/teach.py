"""What is learnt of new tokens once they are there: distillation and warm-up, from the text of a corpus to a model."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from adapt.config import Config
from adapt.model.base import load_base
from adapt.model.export import save_model
from adapt.model.literal import load_text_tokenizer
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenize.quick import QuickTokenizer
from adapt.model.tokenize.ragged import IDS
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.build import make
from adapt.vocabulary.distil import Error, distil, snippets_of
from adapt.vocabulary.rows import embedding_table
from adapt.vocabulary.warm import Warmed, warm_up

TOGETHER = 64
"""Documents that are tokenized together."""


def distil_rows(
    teacher: Pretrained,
    extended: Pretrained,
    pieces: Mapping[int, Sequence[int]],
    texts: Iterable[str],
    config: Config,
    folder: Path,
) -> Error:
    """Teaches new rows what the model before made of their pieces (`adapt.vocabulary.distil`), and writes the model.

    Args:
        teacher: the model before its vocabulary was extended.
        extended: the model after.
        pieces: for the id of each new token the ids of its old pieces.
        texts: documents that new rows are taught on.
        config: `vocabulary`, `objective` and `seed`.
        folder: to write.
    """
    asked, causal = config.vocabulary, config.objective.kind == "causal"
    snippets = list(snippets_of(_documents(extended, texts), pieces, asked.snippets))
    random.Random(config.seed).shuffle(snippets)
    student = load_base(extended.model, extended.trust_remote_code)
    known = load_base(teacher.model, teacher.trust_remote_code)
    error = distil(known, student, pieces, snippets, asked.learning_rate, causal, _device())
    model = load_model(extended.model, causal, extended.trust_remote_code)
    with torch.no_grad():
        embedding_table(model)[list(pieces)] = embedding_table(student)[list(pieces)].cpu()
    _save(extended, model, folder)
    return error


def warm_rows(extended: Pretrained, new: Sequence[int], texts: Iterable[str], config: Config, folder: Path) -> Warmed:
    """Teaches new rows by the objective (`adapt.vocabulary.warm`), and writes the model; arguments as above."""
    asked, causal = config.vocabulary, config.objective.kind == "causal"
    model = load_model(extended.model, causal, extended.trust_remote_code)
    tokenizer = load_tokenizer(extended.model, extended.tokenizer, extended.trust_remote_code)
    # single tokens are masked: words, spans and entities need marks that only prepared text has
    objective = make(replace(config.objective, kind="causal" if causal else "mlm"), tokenizer, config.seed)
    documents, length = _documents(extended, texts), config.training.sequence_length
    warmed = warm_up(model, objective, documents, new, asked.warmup_steps, asked.learning_rate, length, _device())
    _save(extended, model, folder)
    return warmed


def _documents(pretrained: Pretrained, texts: Iterable[str]) -> Iterator[np.ndarray]:
    """The tokens of each document."""
    quick, texts = QuickTokenizer(load_text_tokenizer(pretrained).backend_tokenizer), iter(texts)
    while some := list(islice(texts, TOGETHER)):
        yield from quick(some).lists(IDS)


def _save(extended: Pretrained, model: torch.nn.Module, folder: Path) -> None:
    tokenizer = load_tokenizer(extended.model, extended.tokenizer, extended.trust_remote_code)
    save_model(extended.model, model.state_dict(), tokenizer, folder, extended.trust_remote_code)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
