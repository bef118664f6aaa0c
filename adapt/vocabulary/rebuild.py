"""Rebuilds a tokenizer with new tokens in its model (WordPiece, BPE or Unigram). Old tokens keep their ids.

Tokens that are only added to a tokenizer would be cut out of a text before the model splits it, even inside words.
Tokenizing would also take longer with each added token. Instead, BPE gets merges that lead from the old pieces of a
word to one token, and Unigram gets pieces with a slightly higher score than the best path over other pieces.
"""

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from tokenizers import Tokenizer

from adapt.support.errors import ModelError

Described = dict[str, Any]
"""Description of a tokenizer's model, as in tokenizer.json."""


@dataclass(frozen=True)
class Rebuilt:
    """A tokenizer with more tokens."""

    backend: Tokenizer
    added: dict[str, int]
    """Ids of the new tokens, keyed by token, in ascending order."""
    steps: frozenset[str]
    """New tokens that are only intermediate results of merges."""
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
            f"choose a model with one of {', '.join(FAMILY)}",
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
    wrong = [token for token, number in {**old, **added}.items() if found.get(token) != number]
    if wrong or len(found) != len(old) + len(added):
        token = next(iter(wrong), "(more tokens than expected)")
        raise ModelError(
            f"the tokenizer cannot be rebuilt: {token!r} would be {found.get(token)} and not {old.get(token)}",
            "choose a model with another tokenizer",
        )


def _wordpiece(
    model: Described, pieces: Mapping[str, Sequence[str]], old: Mapping[str, int]
) -> tuple[list[str], list[str]]:
    """Returns all words as new tokens. WordPiece takes the longest fitting piece, so each word stays one token."""
    return list(pieces), []


def _bpe(model: Described, pieces: Mapping[str, Sequence[str]], old: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Appends new merges, and returns the new tokens, intermediate ones last, and the words that are left out."""
    merges, left_out = new_merges(pieces.values(), old)
    in_lists = not model["merges"] or isinstance(model["merges"][0], list)  # otherwise, merges are strings with a space
    model["merges"] += [list(merge) if in_lists else " ".join(merge) for merge in merges]
    made = [left + right for left, right in merges]
    return [
        *(piece for piece in pieces if piece not in left_out),
        *(piece for piece in made if piece not in pieces),
    ], left_out


def _unigram(
    model: Described, pieces: Mapping[str, Sequence[str]], old: Mapping[str, int]
) -> tuple[list[str], list[str]]:
    """Computes the scores of the new pieces, and stores them in `scores` until ids are assigned."""
    scores = dict(map(tuple, model["vocab"]))
    model["scores"] = {**scores, **new_scores(scores, list(pieces))}
    return list(pieces), []


def _by_name(model: Described, ids: Mapping[str, int]) -> None:
    """Sets the vocabulary of WordPiece or BPE. It includes the old added tokens, so that new ids come after theirs."""
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
"""For each type of model, the function that adds tokens to it. It returns new tokens and left-out words."""


def new_merges(words: Iterable[Sequence[str]], known: Container[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns merges from left to right: for `hep at itis`, (hep, at) and then (hepat, itis).

    New merges come after all old merges, so a text is first split into its old pieces. These pieces remain if no new
    merge applies. The intermediate result `hepat` becomes a token too, and all words with this beginning share it. A
    word is left out if an intermediate result is an old token, because a merge to an old token would change texts
    without a new word.

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
"""Difference between the score of a new piece and the best path over other pieces [nats]. It is small, so that the new
piece is chosen and little else changes."""
UNKNOWN = 10.0
"""Difference between the lowest score of a piece and the score of an unknown character [nats], as in the library."""


def new_scores(scores: Mapping[str, float], pieces: Sequence[str]) -> dict[str, float]:
    """Returns the scores of new pieces.

    Shorter pieces are scored first, so that a longer piece also scores above paths over new shorter ones.

    Args:
        scores: scores of the old pieces [nats].
        pieces: the new pieces.
    """
    known, lowest, new = dict(scores), min(scores.values(), default=0.0) - UNKNOWN, {}
    for piece in sorted(pieces, key=lambda text: (len(text), text)):
        new[piece] = known[piece] = best_path(piece, known, lowest) + MARGIN
    return new


def best_path(text: str, scores: Mapping[str, float], unknown: float) -> float:
    """Returns the highest sum of scores over all splits of a text into pieces (Viterbi; Kudo 2018, arXiv 1804.10959).

    Args:
        text: the text.
        scores: scores of the pieces.
        unknown: score of a character that is not a piece.
    """
    best = [0.0] + [-inf] * len(text)
    for end in range(1, len(text) + 1):
        for start in range(end):
            score = scores.get(text[start:end], unknown if end == start + 1 else -inf)
            best[end] = max(best[end], best[start] + score)
    return best[-1]
