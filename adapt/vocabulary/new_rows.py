"""Adds rows for new tokens to a model's embeddings and head, initializes them, and trains only these rows.

`transplant_rows` initializes rows with the help of another model that knows the tokens, by orthogonal matching pursuit
(arXiv 2506.06607): in the embeddings of this other model (the donor), a new token is approximated by a weighted sum of
a few tokens that both models have. The same weighted sum of this model's rows becomes the new row.

Token distillation (arXiv 2505.20133) trains the embedding row of a new token such that the text around the token has
the same hidden states as with its old pieces. The warm-up trains only the rows of new tokens, with the objective of
pre-training, so that the model also learns to predict the tokens.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import orthogonal_mp
from torch import Tensor, nn
from transformers import PreTrainedModel

from adapt.config import Config
from adapt.model import load, safeguards, states
from adapt.model.locate import Pretrained
from adapt.model.packing.packed import Packed
from adapt.model.tokenize import piece_tokenizer, text_tokenizer
from adapt.model.tokenizer import load_text_tokenizer, load_tokenizer
from adapt.objective.masking import make
from adapt.objective.objective import Batch, Objective
from adapt.support.errors import ModelError
from adapt.vocabulary.word_reader import WordReader

Pieces = Sequence[Sequence[int]]
Rows = Callable[[Tensor, Pieces, torch.Generator], Tensor]
"""Function that computes rows of new tokens. Arguments: the table [V, ...], the old pieces of each new token, and a
random generator."""


def mean_subword(table: Tensor, pieces: Pieces, draws: torch.Generator) -> Tensor:
    """Returns the mean row of each token's old pieces. In the head, a token's logit is then its pieces' mean logit."""
    return torch.stack([table[list(old)].mean(0) for old in pieces])


def normal_rows(table: Tensor, pieces: Pieces, draws: torch.Generator) -> Tensor:
    """Draws rows from normal distributions with the mean and the standard deviation of each dimension of the table."""
    noise = torch.randn((len(pieces), *table.shape[1:]), generator=draws, dtype=table.dtype)
    return table.mean(0) + noise * table.std(0)


def zero_rows(table: Tensor, pieces: Pieces, draws: torch.Generator) -> Tensor:
    """Returns a row of zeros for each new token."""
    return table.new_zeros((len(pieces), *table.shape[1:]))


def _mean_of_all(table: Tensor, pieces: Pieces, draws: torch.Generator) -> Tensor:
    return table.mean(0).expand(len(pieces), *table.shape[1:])


INITS: dict[str, tuple[Rows, Rows, Rows]] = {
    "mean_subword": (mean_subword, mean_subword, mean_subword),
    "normal": (normal_rows, normal_rows, _mean_of_all),
    "zero_logit": (mean_subword, zero_rows, zero_rows),
    "distill": (mean_subword, mean_subword, mean_subword),
    "omp": (mean_subword, mean_subword, mean_subword),
}
"""For each `vocabulary.init`, the functions for rows of the embeddings, rows of the head, and biases of the head. If
embeddings and head are tied, the function of the head is used for both."""


def add_rows(model: PreTrainedModel, pieces: Mapping[int, Sequence[int]], known: int, init: str, seed: int) -> None:
    """Adds rows for new tokens to a model, in place. Rows of old tokens are unchanged.

    Args:
        model: a language model.
        pieces: for the id of each new token, the ids of its old pieces.
        known: the highest old id plus 1. The model may already have rows from this index on, as padding.
        init: a name in INITS.
        seed: seed of random rows.
    """
    size = max(embedding_rows(model), max(pieces) + 1)
    with safeguards.quiet():
        model.resize_token_embeddings(size, mean_resizing=False)
    of_embeddings, of_head, of_biases = INITS[init]
    embeddings, head = embedding_table(model), model.get_output_embeddings()
    draws = torch.Generator().manual_seed(seed)
    ids, old = list(pieces), list(pieces.values())
    with torch.no_grad():
        is_tied = head is not None and head.weight.data_ptr() == embeddings.data_ptr()
        first = of_head if is_tied else of_embeddings
        embeddings[ids] = first(embeddings[:known], old, draws)
        if head is not None and not is_tied:
            head.weight[ids] = of_head(head.weight[:known], old, draws)
        if head is not None and head.bias is not None:
            head.bias[ids] = of_biases(head.bias[:known], old, draws)


def embedding_table(model: PreTrainedModel) -> Tensor:
    """Returns the token embeddings, [V, H]."""
    embeddings: Any = model.get_input_embeddings()
    table: Tensor = embeddings.weight
    return table


def embedding_rows(model: PreTrainedModel) -> int:
    """Returns the number of rows of the token embeddings."""
    return len(embedding_table(model))


def token_tables(model: PreTrainedModel) -> list[nn.Parameter]:
    """Returns the parameters with one row per token: embeddings, head, head bias. Tied parameters occur once."""
    head = model.get_output_embeddings()
    tables = embedding_table(model), getattr(head, "weight", None), getattr(head, "bias", None)
    return list({id(table): table for table in tables if isinstance(table, nn.Parameter)}.values())


class OnlyRows:
    """An optimizer that changes only the rows of some tokens in a model.

    Gradients of all other rows are set to 0, and there is no weight decay, so AdamW does not change them at all.

    Args:
        model: the model. All parameters except the tables with one row per token are frozen, in place.
        ids: ids of the tokens.
        learning_rate: learning rate of AdamW.
    """

    def __init__(self, model: Any, ids: Sequence[int], learning_rate: float) -> None:
        model.requires_grad_(False)
        tables = token_tables(model)
        for table in tables:
            table.requires_grad_(True)
            table.register_hook(lambda gradient: _only_rows(gradient, ids))
        self._optimizer = torch.optim.AdamW(tables, lr=learning_rate, weight_decay=0.0)

    def step(self, loss: Tensor) -> None:
        """Takes one optimizer step on a loss."""
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def _only_rows(gradient: Tensor, ids: Sequence[int]) -> Tensor:
    masked = torch.zeros_like(gradient)
    masked[list(ids)] = gradient[list(ids)]
    return masked


TERMS = 64
"""Maximum number of tokens in the weighted sum for a new row (k in arXiv 2506.06607)."""


def transplanted(
    targets: np.ndarray, anchors: np.ndarray, tables: Sequence[np.ndarray], terms: int = TERMS
) -> list[np.ndarray]:
    """Returns the new rows, [N, ...], for each table of our model.

    Args:
        targets: the donor's rows of the new tokens, [N, H'].
        anchors: the donor's rows of the shared tokens, [M, H'].
        tables: for each table of our model, the rows of the shared tokens, [M, ...]. All tables use the same weights.
        terms: maximum number of tokens in a weighted sum.
    """
    most = min(terms, *anchors.shape)
    weights = orthogonal_mp(anchors.T.astype(np.float64), targets.T.astype(np.float64), n_nonzero_coefs=most)
    by_token = np.reshape(weights, (len(anchors), len(targets))).T
    return [np.tensordot(by_token, table, axes=1).astype(table.dtype) for table in tables]


def transplant_rows(
    model: PreTrainedModel, reader: WordReader, new: Sequence[int], surfaces: Sequence[str], donor: Pretrained
) -> None:
    """Initializes the rows of new tokens in embeddings, head and head bias from a donor's embeddings, in place.

    `reader` reads with the tokenizer before the extension. `surfaces` are the new tokens as readable text.

    If the donor splits a new token into several pieces, the mean of the pieces' rows is used.

    Raises:
        ModelError: the donor cannot be loaded, or shares no token with the model.
    """
    other = WordReader(load_text_tokenizer(donor).backend_tokenizer)
    given = embedding_table(load.read_base(donor.model, donor.trust_remote_code)).detach().numpy()
    ours, theirs = reader.keys(), other.keys()
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        raise ModelError(f"{donor.model} shares no token with the model", "choose another vocabulary.donor")
    pieces = [list(chain.from_iterable(map(other.pieces, other.words(surface)))) for surface in surfaces]
    targets = np.stack([given[each].mean(0) for each in pieces])
    changed = token_tables(model)
    places = [ours[token] for token in both]
    rows = transplanted(
        targets, given[[theirs[token] for token in both]], [each.detach()[places].numpy() for each in changed]
    )
    with torch.no_grad():
        for table, found in zip(changed, rows, strict=True):
            table[list(new)] = torch.from_numpy(found)


TOKENS = 50
"""Maximum length of a snippet for distillation [tokens]."""
STEP_SNIPPETS = 16
"""Number of snippets per step of distillation."""
HELD_OUT = 20
"""The first of every 20 snippets is not used for training, but to measure the error."""


def snippets_of(documents: Iterable[np.ndarray], new: Iterable[int], most: int) -> Iterator[np.ndarray]:
    """Yields parts of documents around new tokens, int64 [at most TOKENS].

    Args:
        documents: token ids of each document.
        new: ids of the new tokens.
        most: maximum number of snippets per new token. A snippet counts for every new token in it.
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


def match_states(
    teacher: Any,
    student: Any,
    pieces: Mapping[int, Sequence[int]],
    snippets: Sequence[np.ndarray],
    learning_rate: float,
    causal: bool,
    device: torch.device,
) -> tuple[int, float, float]:
    """Trains the rows of new tokens by distillation, in place, with one pass over the snippets.

    Returns the number of steps, and the mean squared difference of hidden states on held-out snippets, before and
    after.

    Args:
        teacher: the model before its vocabulary was extended, without its head (`adapt.model.load.load_base`).
        student: the model with the new rows, without its head.
        pieces: for the id of each new token, the ids of its old pieces.
        snippets: snippets with the new tokens, in random order.
        learning_rate: learning rate of AdamW.
        causal: whether the model is causal. Then states before a new token do not depend on it, and are left out.
        device: the device to compute on.
    """
    for model in (teacher, student):
        model.to(device)
    held_out = snippets[::HELD_OUT]
    learnt = [snippet for number, snippet in enumerate(snippets) if number % HELD_OUT] or held_out
    rows = OnlyRows(student, list(pieces), learning_rate)

    def error(batch: Sequence[np.ndarray]) -> Tensor:
        return state_error(teacher, student, pieces, batch, causal, device)

    @torch.no_grad()
    def held_out_error() -> float:
        return _mean([float(error(batch)) for batch in batches_of(held_out)])

    def batches_of(some: Sequence[np.ndarray]) -> list[Sequence[np.ndarray]]:
        return [some[start : start + STEP_SNIPPETS] for start in range(0, len(some), STEP_SNIPPETS)]

    before = held_out_error()
    for batch in batches_of(learnt):
        rows.step(error(batch))
    return len(batches_of(learnt)), before, held_out_error()


def state_error(
    teacher: Any,
    student: Any,
    pieces: Mapping[int, Sequence[int]],
    batch: Sequence[np.ndarray],
    causal: bool,
    device: torch.device,
) -> Tensor:
    """Returns the mean squared difference of last hidden states at unchanged tokens. Arguments as in `match_states`."""
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
        target = states.last_hidden_state(teacher, theirs)[torch.from_numpy(np.concatenate(places)).to(device)]
    found = states.last_hidden_state(student, ours)[torch.from_numpy(np.concatenate(shared)).to(device)]
    return torch.nn.functional.mse_loss(found, target) if len(found) else found.sum()


def _joined(documents: Sequence[Tensor], device: torch.device) -> Packed:
    return Packed.joined(*map(Packed.single, documents)).to(device)


def _mean(losses: Sequence[float]) -> float:
    return sum(losses) / max(len(losses), 1)


STEP_ROWS = 16
"""Number of rows of packed text per step of the warm-up."""
LONGEST = 128
"""Maximum length of a row in the warm-up [tokens]."""


def warm_up(
    model: Any,
    objective: Objective,
    documents: Iterable[np.ndarray],
    new: Sequence[int],
    steps: int,
    learning_rate: float,
    length: int,
    device: torch.device,
) -> tuple[int, float, float]:
    """Trains the rows of new tokens with an objective, in place. No other parameter of the model changes.

    Returns the number of steps, and the mean loss over the first tenth and over the last tenth of the steps [nats per
    predicted token].

    Args:
        model: a language model (`adapt.model.load.load_model`).
        objective: the training objective.
        documents: token ids of each document, with special tokens.
        new: ids of the new tokens.
        steps: maximum number of steps; there are fewer if the text ends earlier.
        learning_rate: learning rate of AdamW.
        length: length of a row [tokens].
        device: the device to compute on.
    """
    model.to(device)
    rows, losses = OnlyRows(model, new, learning_rate), []
    for _, batch in zip(range(steps), batches_in_turn(documents, min(length, LONGEST)), strict=False):
        corrupted = objective.corrupt(batch).bound_for(device)
        loss = objective.loss(model, corrupted) / max(len(corrupted.targets), 1)
        rows.step(loss)
        losses.append(float(loss.detach()))
    tenth = max(1, len(losses) // 10)
    return len(losses), _mean(losses[:tenth]), _mean(losses[-tenth:])


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


TOGETHER = 64
"""Number of documents that are tokenized at once."""


def distil_rows(
    teacher: Pretrained,
    extended: Pretrained,
    pieces: Mapping[int, Sequence[int]],
    texts: Iterable[str],
    config: Config,
    folder: Path,
) -> tuple[int, float, float]:
    """Trains new rows by distillation from the original model, and writes the model. Returns as `match_states`.

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
    student = load.load_base(extended.model, extended.trust_remote_code)
    known = load.load_base(teacher.model, teacher.trust_remote_code)
    found = match_states(known, student, pieces, snippets, asked.learning_rate, causal, _device())
    model = load.load_model(extended.model, causal, extended.trust_remote_code)
    with torch.no_grad():
        embedding_table(model)[list(pieces)] = embedding_table(student)[list(pieces)].cpu()
    _save(extended, model, folder)
    return found


def warm_rows(
    extended: Pretrained, new: Sequence[int], texts: Iterable[str], config: Config, folder: Path
) -> tuple[int, float, float]:
    """Trains new rows with the objective of pre-training, and writes the model. Returns as `warm_up`.

    For arguments see `distil_rows`.
    """
    asked, causal = config.vocabulary, config.objective.kind == "causal"
    model = load.load_model(extended.model, causal, extended.trust_remote_code)
    tokenizer = load_tokenizer(extended.model, extended.tokenizer, extended.trust_remote_code)
    # Single tokens are masked, because words, spans and entities are only marked in prepared text.
    objective = make(replace(config.objective, kind="causal" if causal else "mlm"), tokenizer, config.seed)
    documents, length = _documents(extended, texts), config.training.sequence_length
    warmed = warm_up(model, objective, documents, new, asked.warmup_steps, asked.learning_rate, length, _device())
    _save(extended, model, folder)
    return warmed


def _documents(pretrained: Pretrained, texts: Iterable[str]) -> Iterator[np.ndarray]:
    """Yields the token ids of each document."""
    quick, texts = text_tokenizer.QuickTokenizer(load_text_tokenizer(pretrained).backend_tokenizer), iter(texts)
    while some := list(islice(texts, TOGETHER)):
        yield from quick(some).lists(piece_tokenizer.IDS)


def _save(extended: Pretrained, model: torch.nn.Module, folder: Path) -> None:
    tokenizer = load_tokenizer(extended.model, extended.tokenizer, extended.trust_remote_code)
    load.save_model(extended.model, model.state_dict(), tokenizer, folder, extended.trust_remote_code)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
