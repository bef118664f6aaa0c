"""Writes tokenizers and models with additional tokens and a model card. Also writes models with fewer tokens.

Tokens that are only added to a tokenizer would be cut out of a text before the model splits it, even inside words.
Tokenizing would also take longer with each added token. So the tokenizer is rebuilt with the new tokens in its model
(WordPiece, BPE or Unigram), and old tokens keep their ids. BPE gets merges that lead from the old pieces of a word to
one token, and Unigram gets pieces with a slightly higher score than the best path over other pieces.
"""

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from adapt.config.job_sections import tokens_wanted
from adapt.model import load, safeguards
from adapt.model.additions.exbert import add_exbert
from adapt.model.additions.table import KEY, additions_of, stored_additions
from adapt.model.locate import CONFIG, Pretrained, read_json
from adapt.model.model_card import card_code, card_text, front_matter, loading_code, settings
from adapt.model.tokenizer import load_config, load_tokenizer, read_tokenizer
from adapt.runner.files import write_atomically
from adapt.support.errors import DataError, ModelError
from adapt.vocabulary import analysis, new_rows, trimming
from adapt.vocabulary.vocabulary_results import Extended
from adapt.vocabulary.word_reader import CountedWord, WordReader

Described = dict[str, Any]
"""Description of a tokenizer's model, as in tokenizer.json."""


@dataclass(frozen=True)
class Rebuilt:
    """A tokenizer with more tokens."""

    backend: Tokenizer
    added: dict[str, int]
    """Ids of the new tokens, keyed by token, in ascending order of ids."""
    steps: frozenset[str]
    """New tokens that are not words, but only intermediate results of BPE merges."""
    left_out: list[str]
    """Words that did not become tokens, because as tokens they would change how other texts are split."""


def rebuild(backend: Tokenizer, pieces: Mapping[str, Sequence[str]]) -> Rebuilt:
    """Builds a tokenizer with new tokens, whose ids follow the highest old id.

    Args:
        backend: the original tokenizer, which is not changed.
        pieces: for each new token, in the tokenizer's spelling, its old pieces.

    Raises:
        ModelError: the type of the tokenizer's model is not supported, or an id would change.
    """
    whole = json.loads(backend.to_str())
    model = whole["model"]
    kind = str(model.get("type"))
    family = FAMILY.get(kind)
    if family is None:
        raise ModelError(
            f"a tokenizer of type {kind} cannot be extended",
            f"choose a model whose tokenizer has one of the types {', '.join(FAMILY)}",
        )
    old: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    new, left_out = family(model, pieces, old)
    added = {piece: number for number, piece in enumerate(new, start=max(old.values()) + 1)}
    (_by_place if kind == "Unigram" else _by_name)(model, {**old, **added})
    rebuilt = Tokenizer.from_str(json.dumps(whole))
    check_ids(old, added, rebuilt.get_vocab(with_added_tokens=True))
    return Rebuilt(rebuilt, added, frozenset(new) - pieces.keys(), left_out)


def check_ids(old: Mapping[str, int], added: Mapping[str, int], found: Mapping[str, int]) -> None:
    """Checks that all tokens of a rebuilt tokenizer have the expected ids.

    Raises:
        ModelError: a token has another id; the message names it.
    """
    expected = {**old, **added}
    wrong = next((token for token, number in expected.items() if found.get(token) != number), None)
    if wrong is not None:
        reason = f"the id of {wrong!r} would be {found.get(wrong, 'missing')} instead of {expected[wrong]}"
    elif len(found) != len(expected):
        reason = f"it would have {len(found)} tokens instead of {len(expected)}"
    else:
        return
    raise ModelError(f"the tokenizer cannot be rebuilt: {reason}", "choose a model with another tokenizer")


def _wordpiece(
    model: Described, pieces: Mapping[str, Sequence[str]], old: Mapping[str, int]
) -> tuple[list[str], list[str]]:
    """Returns all words as new tokens. WordPiece always takes the longest fitting piece, so each word is one token."""
    return list(pieces), []


def _bpe(model: Described, pieces: Mapping[str, Sequence[str]], old: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Appends merges to a BPE model. Returns the new tokens (intermediate results last) and the left-out words."""
    merges, left_out = new_merges(pieces.values(), old)
    in_lists = not model["merges"] or isinstance(model["merges"][0], list)  # else a merge is a string with a space
    model["merges"] += [list(merge) if in_lists else " ".join(merge) for merge in merges]
    made = [left + right for left, right in merges]
    return [
        *(piece for piece in pieces if piece not in left_out),
        *(piece for piece in made if piece not in pieces),
    ], left_out


def _unigram(
    model: Described, pieces: Mapping[str, Sequence[str]], old: Mapping[str, int]
) -> tuple[list[str], list[str]]:
    """Computes the scores of the new pieces, and stores all scores under `scores` until ids are assigned.

    A word can be an old token although it is split, because its pieces have a higher score. It is left out, because
    with a higher score of the old token, other texts would be split differently.
    """
    scores = dict(map(tuple, model["vocab"]))
    new = [piece for piece in pieces if piece not in old]
    model["scores"] = {**scores, **new_scores(scores, new)}
    return new, [piece for piece in pieces if piece in old]


def _by_name(model: Described, ids: Mapping[str, int]) -> None:
    """Sets the vocabulary of WordPiece or BPE. It includes the old added tokens, so that new tokens get higher ids."""
    model["vocab"] = dict(sorted(ids.items(), key=lambda item: item[1]))


def _by_place(model: Described, ids: Mapping[str, int]) -> None:
    """Sets the vocabulary of Unigram, a list in the order of ids.

    Ids without a token get a name that occurs in no text. Tokens without a score get the lowest score.
    """
    scores: dict[str, float] = model.pop("scores")
    lowest = min(score for _, score in model["vocab"])
    names = {number: piece for piece, number in ids.items()}
    model["vocab"] = [
        [names.get(number, f"\0unused{number}"), scores.get(names.get(number, ""), lowest)]
        for number in range(max(names) + 1)
    ]


Family = Callable[[Described, Mapping[str, Sequence[str]], Mapping[str, int]], tuple[list[str], list[str]]]
FAMILY: dict[str, Family] = {"WordPiece": _wordpiece, "BPE": _bpe, "Unigram": _unigram}
"""Functions that add tokens, keyed by type of tokenizer model. They return the new tokens and the left-out words."""


def new_merges(words: Iterable[Sequence[str]], known: Container[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns merges from left to right: for `hep at itis`, (hep, at) and then (hepat, itis).

    New merges come after all old merges, so a text is first split into its old pieces. If no new merge applies,
    the text keeps this split. The intermediate result `hepat` becomes a token too, and all words with this beginning
    share it. A word is left out if an intermediate result is an old token, because a merge to an old token would change
    how texts without new words are split.

    Args:
        words: the old pieces of each word, at least two.
        known: old tokens.

    Returns:
        The merges in order, and the words that are left out.
    """
    merges: dict[tuple[str, str], None] = {}
    left_out = []
    for pieces in words:
        prefix, steps = pieces[0], []
        for piece in pieces[1:]:
            steps.append((prefix, piece))
            prefix += piece
        if any(left + right in known for left, right in steps):
            left_out.append(prefix)
        else:
            merges.update(dict.fromkeys(steps))
    return list(merges), left_out


MARGIN = 0.01
"""Difference between the score of a new piece and the best path over other pieces [nats]. It is large enough that
the new piece is chosen, and small enough that few other texts are split differently."""
UNKNOWN = 10.0
"""Difference between the lowest score of a piece and the score of an unknown character [nats], as in the library."""


def new_scores(scores: Mapping[str, float], pieces: Sequence[str]) -> dict[str, float]:
    """Returns the scores of new pieces [nats], from the scores of the old pieces [nats].

    Shorter pieces are scored first, so that the score of a longer piece is also above paths over shorter new pieces.
    """
    known, lowest, new = dict(scores), min(scores.values(), default=0.0) - UNKNOWN, {}
    for piece in sorted(pieces, key=lambda text: (len(text), text)):
        new[piece] = known[piece] = best_path(piece, known, lowest) + MARGIN
    return new


def best_path(text: str, scores: Mapping[str, float], unknown: float) -> float:
    """Returns the highest sum of scores over all splits of a text into pieces (Viterbi; Kudo 2018, arXiv 1804.10959).

    A character that is not a piece has the score `unknown`.
    """
    best = [0.0] + [-inf] * len(text)
    for end in range(1, len(text) + 1):
        for start in range(end):
            score = scores.get(text[start:end], unknown if end == start + 1 else -inf)
            best[end] = max(best[end], best[start] + score)
    return best[-1]


CHECKED = 1000
"""Number of tokens that are checked after a tokenizer was written: those with the highest ids."""


def tokens_to_add(size: int | str | None, candidates: Sequence[CountedWord], vocabulary: int) -> int:
    """Returns how many candidates should become tokens. The result may exceed the number of candidates."""
    if size == "elbow":
        return analysis.elbow([word.saved for word in candidates])
    assert not isinstance(size, str)
    return tokens_wanted(size, vocabulary)


@dataclass(frozen=True)
class Reached:
    """A tokenizer whose new tokens occur in words of the corpus or are intermediate results of merges."""

    rebuilt: Rebuilt
    chosen: list[CountedWord]
    """The candidates that became tokens."""
    unreached: list[CountedWord]
    """The candidates that are left out, because they do not occur in the tokenization of any word."""


def build_reached(backend: Tokenizer, chosen: Sequence[CountedWord], words: Sequence[CountedWord]) -> Reached:
    """Builds a tokenizer with candidates as tokens, and rebuilds it without tokens that occur in no tokenized word.

    Without the merges of an unused token, words may be split differently, so that further tokens are unused. The
    tokenizer is rebuilt until all tokens are used.

    Args:
        backend: the tokenizer.
        chosen: the candidates.
        words: the words that are tokenized to see which new tokens are used.

    Raises:
        DataError: no candidate is used.
        ModelError: see `adapt.vocabulary.extension.rebuild`.
    """
    names = {number: token for token, number in backend.get_vocab().items()}
    left = list(chosen)
    while left:
        rebuilt = rebuild(backend, analysis.pieces_of(left, names))
        reader = WordReader(rebuilt.backend)
        asked = {word.word for word in left}
        seen = {piece for word in words for piece in reader.pieces(word.word)}
        reached = [word for word in left if rebuilt.added.get(word.word) in seen]
        if len(reached) == len(left):
            return Reached(rebuilt, left, [word for word in chosen if word.word not in asked])
        left = reached
    raise DataError(
        "no candidate can become a token that the tokenizer uses",
        "change vocabulary.candidates, or use a larger corpus",
    )


@safeguards.one_at_a_time
def write_extended(
    pretrained: Pretrained,
    rebuilt: Rebuilt,
    init: str,
    seed: int,
    causal: bool,
    folder: Path,
    donor: Pretrained | None = None,
    module_share: float | None = None,
) -> int:
    """Writes the model and the tokenizer with the new tokens, and returns the number of embedding rows.

    Args:
        pretrained: the original model.
        rebuilt: the tokenizer with the new tokens.
        init: the initialization of new rows, a name in `adapt.vocabulary.new_rows.INITS`.
        seed: seed of random rows.
        causal: whether the model predicts next tokens.
        folder: the folder in which model and tokenizer are written.
        donor: for `omp`, the model from which rows are transplanted. Its vocabulary has the new tokens.
        module_share: size of the added exBERT module, as a share of the model's heads and neurons
            (`adapt.model.additions.exbert.add_exbert`); None for no module.

    Raises:
        ModelError: the model or the written tokenizer cannot be loaded, or the model cannot have a module.
    """
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    old = tokenizer.get_vocab()
    reader = WordReader(tokenizer.backend_tokenizer)
    model = load.load_model(pretrained.model, causal, pretrained.trust_remote_code)
    pieces = {number: reader.parts(token) for token, number in rebuilt.added.items()}
    new_rows.add_rows(model, pieces, max(old.values()) + 1, init, seed)
    if donor:
        surfaces = [WordReader(rebuilt.backend).surface(token) for token in rebuilt.added]
        new_rows.transplant_rows(model, reader, list(pieces), surfaces, donor)
    if module_share is not None:
        add_exbert(model, module_share, max(old.values()) + 1, seed)
    rows = new_rows.embedding_rows(model)
    settings = {**read_json(pretrained.model / CONFIG), "vocab_size": rows}
    if entries := additions_of(model.config):
        settings[KEY] = entries
    write_atomically(folder / CONFIG, json.dumps(settings, indent=2))
    save_tokenizer(tokenizer, rebuilt.backend, folder, pretrained.trust_remote_code)
    load.save_model(folder, model.state_dict(), load_tokenizer(folder), folder, pretrained.trust_remote_code)
    return rows


def save_tokenizer(
    tokenizer: PreTrainedTokenizerFast, backend: Tokenizer, folder: Path, trust_remote_code: bool
) -> None:
    """Writes a tokenizer whose backend was replaced, reads it back, and checks that nothing has changed.

    The folder must already have config.json.

    Raises:
        ModelError: the tokenizer that was read back differs.
    """
    tokenizer.save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    found = read_tokenizer(folder, load_config(folder, trust_remote_code), trust_remote_code)
    newest = sorted(backend.get_vocab().items(), key=lambda item: -item[1])[:CHECKED]
    before, after = WordReader(backend), WordReader(found.backend_tokenizer)
    is_same = all(before.pieces(token) == after.pieces(token) for token, _ in newest)
    if found.get_vocab() != backend.get_vocab() or not is_same:
        raise ModelError(
            f"a tokenizer of class {type(tokenizer).__name__} loses its new tokens when it is saved and loaded again",
            "choose a model whose tokenizer.json describes the whole tokenizer",
        )


def pieces_in(words: Iterable[CountedWord], reader: WordReader) -> int:
    """Returns the number of pieces into which a tokenizer splits all words of a corpus."""
    return sum(word.count * len(reader.pieces(word.word)) for word in words)


@safeguards.one_at_a_time
def write_trimmed(pretrained: Pretrained, trimmed: trimming.Trimmed, causal: bool, folder: Path) -> int:
    """Writes the model and the tokenizer without the dropped tokens, and returns the number of removed parameters.

    For the arguments see `write_extended`.

    Raises:
        ModelError: config.json names a special token that trimming would remove, or the model cannot be loaded.
    """
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    settings = trimming.with_new_ids(read_json(pretrained.model / CONFIG), trimmed)
    write_atomically(folder / CONFIG, json.dumps(settings, indent=2))
    model = load.load_model(pretrained.model, causal, pretrained.trust_remote_code)
    before = model.num_parameters()
    trimming.keep_rows(model, trimmed.kept)
    save_tokenizer(tokenizer, trimmed.backend, folder, pretrained.trust_remote_code)
    load.save_model(folder, model.state_dict(), load_tokenizer(folder), folder, pretrained.trust_remote_code)
    return before - model.num_parameters()


CARD = """\
---
{front}
---

# {name}

{base_model} with {words:,} words of a domain as new tokens. The model has not been trained since they were added.

## What was changed

{facts}

The tokenizer was rebuilt: old ids are unchanged, texts without a new token have the same tokens as before,
and the new ids come after the old ones. `words.json` lists the new tokens.

The first new tokens: {first}.

## How to load it

{loading}
"""


def write_extension_card(folder: Path, name: str, base_model: str, extended: Extended, causal: bool) -> None:
    """Writes the model card of an extended model, with the names of the job and of the original model."""
    additions = [entry["kind"] for entry in stored_additions(folder)]
    facts = {
        "new tokens": extended.words + extended.steps,
        "tokens in the vocabulary": extended.vocabulary,
        "rows of the embedding table": extended.rows,
        "tokens per word of the corpus, before the extension": round(extended.fertility_before, 3),
        "tokens per word of the corpus, after the extension": round(extended.fertility_after, 3),
        "initialization of new rows": extended.init,
        **({"additions to the architecture": ", ".join(additions)} if additions else {}),
    }
    card = CARD.format(
        front=front_matter(base_model, "text-generation" if causal else "fill-mask"),
        loading=loading_code(causal, additions),
        name=card_text(name),
        base_model=card_code(base_model),
        words=extended.words,
        facts=settings(facts),
        first=", ".join(map(card_text, extended.first)),
    )
    write_atomically(folder / "README.md", card)
