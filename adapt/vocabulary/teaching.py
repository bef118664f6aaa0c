"""Trains the rows of new tokens on the text of a corpus, by distillation and by a warm-up.

Token distillation (arXiv 2505.20133) trains the embedding row of a new token such that the text around the token has
the same hidden states as with its old pieces. The warm-up trains the rows of new tokens, and nothing else, with the
objective of pre-training, so that the model also learns to predict the tokens.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adapt.config import Config
from adapt.model.load import load_base, load_model, save_model
from adapt.model.locate import Pretrained
from adapt.model.packing.packed import Packed
from adapt.model.states import last_hidden_state
from adapt.model.tokenize.piece_tokenizer import IDS
from adapt.model.tokenize.text_tokenizer import QuickTokenizer
from adapt.model.tokenizer import load_text_tokenizer, load_tokenizer
from adapt.objective.masking import make
from adapt.objective.objective import Batch, Objective
from adapt.vocabulary.embedding_rows import OnlyRows, embedding_table

TOKENS = 50
"""Largest length of a snippet for distillation [tokens]."""
STEP_SNIPPETS = 16
"""Number of snippets per step of distillation."""
HELD_OUT = 20
"""The first of every 20 snippets is held out from training to measure the error."""


def snippets_of(documents: Iterable[np.ndarray], new: Iterable[int], most: int) -> Iterator[np.ndarray]:
    """Yields parts of documents around new tokens, int64 [at most TOKENS].

    Args:
        documents: token ids of each document.
        new: ids of the new tokens.
        most: largest number of snippets per new token. A snippet counts for every new token in it.
    """
    asked, counts = np.array(sorted(new)), Counter[int]()
    for tokens in documents:
        until = 0
        for place in np.flatnonzero(np.isin(tokens, asked)).tolist():
            if place >= until and counts[int(tokens[place])] < most:
                start = max(0, place - TOKENS // 2)
                snippet = tokens[start : start + TOKENS].astype(np.int64)
                counts.update(snippet[np.isin(snippet, asked)].tolist())
                until = start + len(snippet)
                if len(snippet) > 1:
                    yield snippet


@dataclass(frozen=True)
class Error:
    """Error before and after distillation: mean squared difference of hidden states on held-out snippets."""

    before: float
    after: float
    steps: int


def match_states(
    teacher: Any,
    student: Any,
    pieces: Mapping[int, Sequence[int]],
    snippets: Sequence[np.ndarray],
    learning_rate: float,
    causal: bool,
    device: torch.device,
) -> Error:
    """Trains the rows of new tokens by distillation, in place, with one pass over the snippets.

    Args:
        teacher: the model before its vocabulary was extended, without its head (`adapt.model.load.load_base`).
        student: the model with the new rows, without its head.
        pieces: for the id of each new token, the ids of its old pieces.
        snippets: snippets with the new tokens, in random order.
        learning_rate: learning rate of AdamW.
        causal: whether the model is causal. Then states before a new token do not depend on it, and are left out.
        device: the device that computes.
    """
    for model in (teacher, student):
        model.to(device)
    held_out = snippets[::HELD_OUT]
    learnt = [snippet for number, snippet in enumerate(snippets) if number % HELD_OUT] or held_out
    rows = OnlyRows(student, list(pieces), learning_rate)

    def error(batch: Sequence[np.ndarray]) -> Tensor:
        return state_error(teacher, student, pieces, batch, causal, device)

    before = _mean_error(error, held_out)
    for start in range(0, len(learnt), STEP_SNIPPETS):
        rows.step(error(learnt[start : start + STEP_SNIPPETS]))
    return Error(before, _mean_error(error, held_out), -(-len(learnt) // STEP_SNIPPETS))


def state_error(
    teacher: Any,
    student: Any,
    pieces: Mapping[int, Sequence[int]],
    batch: Sequence[np.ndarray],
    causal: bool,
    device: torch.device,
) -> Tensor:
    """Returns the mean squared difference of the last states at shared tokens; arguments as in `match_states`."""
    old = [list(chain.from_iterable(pieces.get(token, [token]) for token in snippet.tolist())) for snippet in batch]
    shared, places = [], []
    for snippet in batch:
        is_new = np.isin(snippet, list(pieces))
        knows = np.cumsum(is_new) > 0 if causal else np.ones(len(snippet), bool)
        lengths = np.array([len(pieces.get(token, [token])) for token in snippet.tolist()])
        shared.append(~is_new & knows)
        places.append(np.repeat(shared[-1], lengths))
    theirs = _joined([torch.tensor(ids) for ids in old], device)
    ours = _joined([torch.from_numpy(snippet) for snippet in batch], device)
    with torch.no_grad():
        target = last_hidden_state(teacher, theirs)[torch.from_numpy(np.concatenate(places)).to(device)]
    found = last_hidden_state(student, ours)[torch.from_numpy(np.concatenate(shared)).to(device)]
    return torch.nn.functional.mse_loss(found, target) if len(found) else found.sum()


def _joined(documents: Sequence[Tensor], device: torch.device) -> Packed:
    return Packed.joined(*map(Packed.single, documents)).to(device)


def _mean_error(error: Any, snippets: Sequence[np.ndarray]) -> float:
    with torch.no_grad():
        losses = [
            float(error(snippets[start : start + STEP_SNIPPETS])) for start in range(0, len(snippets), STEP_SNIPPETS)
        ]
    return sum(losses) / max(len(losses), 1)


STEP_ROWS = 16
"""Number of rows of packed text per step of the warm-up."""
LONGEST = 128
"""Largest length of a row in the warm-up [tokens]."""


@dataclass(frozen=True)
class Warmed:
    """Mean loss of the first and the last tenth of the steps of a warm-up [nats per predicted token]."""

    first: float
    last: float
    steps: int


def warm_up(
    model: Any,
    objective: Objective,
    documents: Iterable[np.ndarray],
    new: Sequence[int],
    steps: int,
    learning_rate: float,
    length: int,
    device: torch.device,
) -> Warmed:
    """Trains the rows of new tokens with an objective, in place. No other parameter of the model changes.

    Args:
        model: a language model (`adapt.model.load.load_model`).
        objective: the training objective.
        documents: token ids of each document, with special tokens.
        new: ids of the new tokens.
        steps: largest number of steps; there are fewer if the text ends earlier.
        learning_rate: learning rate of AdamW.
        length: length of a row [tokens].
        device: the device that computes.
    """
    model.to(device)
    rows, losses = OnlyRows(model, new, learning_rate), []
    for _, batch in zip(range(steps), batches_in_turn(documents, min(length, LONGEST)), strict=False):
        corrupted = objective.corrupt(batch).bound_for(device)
        loss = objective.loss(model, corrupted) / max(len(corrupted.targets), 1)
        rows.step(loss)
        losses.append(float(loss.detach()))
    tenth = max(1, len(losses) // 10)
    return Warmed(_mean_loss(losses[:tenth]), _mean_loss(losses[-tenth:]), len(losses))


def batches_in_turn(documents: Iterable[np.ndarray], length: int) -> Iterator[Batch]:
    """Concatenates documents, splits them into rows, and yields full batches. An incomplete last batch is dropped."""
    size, held = STEP_ROWS * length, [np.zeros(0, np.int64)]
    starts, number = [np.zeros(0, bool)], 0
    for tokens in documents:
        held.append(tokens.astype(np.int64))
        starts.append(np.arange(len(tokens)) == 0)
        while sum(map(len, held)) >= size:
            stream, begins = np.concatenate(held), np.concatenate(starts)
            yield _row_batch(stream[:size].reshape(STEP_ROWS, length), begins[:size].reshape(STEP_ROWS, length), number)
            held, starts, number = [stream[size:]], [begins[size:]], number + STEP_ROWS


def _row_batch(tokens: np.ndarray, starts: np.ndarray, number: int) -> Batch:
    starts = starts.copy()
    starts[:, 0] = True
    return Batch(
        tokens=torch.from_numpy(tokens.copy()),
        lengths=torch.full((len(tokens),), tokens.shape[1]),
        epochs=torch.zeros(len(tokens), dtype=torch.int64),
        rows=torch.arange(number, number + len(tokens)),
        starts=torch.from_numpy(starts),
    )


def _mean_loss(losses: Sequence[float]) -> float:
    return sum(losses) / max(len(losses), 1)


TOGETHER = 64
"""Number of documents that are tokenized at once."""


def distil_rows(
    teacher: Pretrained,
    extended: Pretrained,
    pieces: Mapping[int, Sequence[int]],
    texts: Iterable[str],
    config: Config,
    folder: Path,
) -> Error:
    """Trains new rows by distillation from the original model, and writes the model.

    Args:
        teacher: the model before its vocabulary was extended.
        extended: the extended model.
        pieces: for the id of each new token, the ids of its old pieces.
        texts: the training documents.
        config: the job's configuration (`vocabulary`, `objective` and `seed`).
        folder: the folder in which the model is written.
    """
    asked, causal = config.vocabulary, config.objective.kind == "causal"
    snippets = list(snippets_of(_documents(extended, texts), pieces, asked.snippets))
    random.Random(config.seed).shuffle(snippets)
    student = load_base(extended.model, extended.trust_remote_code)
    known = load_base(teacher.model, teacher.trust_remote_code)
    error = match_states(known, student, pieces, snippets, asked.learning_rate, causal, _device())
    model = load_model(extended.model, causal, extended.trust_remote_code)
    with torch.no_grad():
        embedding_table(model)[list(pieces)] = embedding_table(student)[list(pieces)].cpu()
    _save(extended, model, folder)
    return error


def warm_rows(extended: Pretrained, new: Sequence[int], texts: Iterable[str], config: Config, folder: Path) -> Warmed:
    """Trains new rows with the objective of pre-training, and writes the model. For arguments see `distil_rows`."""
    asked, causal = config.vocabulary, config.objective.kind == "causal"
    model = load_model(extended.model, causal, extended.trust_remote_code)
    tokenizer = load_tokenizer(extended.model, extended.tokenizer, extended.trust_remote_code)
    # Single tokens are masked. Masking words, spans or entities needs marks that only prepared text has.
    objective = make(replace(config.objective, kind="causal" if causal else "mlm"), tokenizer, config.seed)
    documents, length = _documents(extended, texts), config.training.sequence_length
    warmed = warm_up(model, objective, documents, new, asked.warmup_steps, asked.learning_rate, length, _device())
    _save(extended, model, folder)
    return warmed


def _documents(pretrained: Pretrained, texts: Iterable[str]) -> Iterator[np.ndarray]:
    """Yields the token ids of each document."""
    quick, texts = QuickTokenizer(load_text_tokenizer(pretrained).backend_tokenizer), iter(texts)
    while some := list(islice(texts, TOGETHER)):
        yield from quick(some).lists(IDS)


def _save(extended: Pretrained, model: torch.nn.Module, folder: Path) -> None:
    tokenizer = load_tokenizer(extended.model, extended.tokenizer, extended.trust_remote_code)
    save_model(extended.model, model.state_dict(), tokenizer, folder, extended.trust_remote_code)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
