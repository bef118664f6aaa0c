"""Builds a tokenizer anew with more tokens: its model knows the new tokens, and old ids keep their meaning.

Tokens that are merely added would be cut out of a text before the tokenizer's model reads it, wherever they are in a
word, and would take longer the more there are. Instead, BPE gets merges that lead from the old pieces of a word to one
token. Unigram gets pieces that score a little more than the best path over other pieces.
"""

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from tokenizers import Tokenizer

from adapt.support.errors import ModelError

Described = dict[str, Any]
"""A tokenizer's model as tokenizer.json has it."""


@dataclass(frozen=True)
class Rebuilt:
    """A tokenizer with more tokens."""

    backend: Tokenizer
    added: dict[str, int]
    """The new tokens with their ids, in order."""
    steps: frozenset[str]
    """Those of them that only stand on the way of merges to others."""
    left_out: list[str]
    """Words that cannot become tokens without a change of other texts."""


def rebuild(backend: Tokenizer, pieces: Mapping[str, Sequence[str]]) -> Rebuilt:
    """Builds a tokenizer with new tokens, whose ids follow the highest there is.

    Args:
        backend: the tokenizer, which stays as it is.
        pieces: for each new token, in the letters of the model, its old pieces.

    Raises:
        ModelError: its model is of no known family, or an id would change.
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
    """Refuses a rebuilt tokenizer in which a token has another id than it should.

    Raises:
        ModelError: names one.
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
    """The longest piece that fits is taken, so a word that is a piece is one token."""
    return list(pieces), []


def _bpe(model: Described, pieces: Mapping[str, Sequence[str]], old: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Merges come after the old ones; tokens are those that were asked for, then those on their way."""
    merges, left_out = new_merges(pieces.values(), old)
    in_lists = not model["merges"] or isinstance(model["merges"][0], list)  # and not with a blank between
    model["merges"] += [list(merge) if in_lists else " ".join(merge) for merge in merges]
    made = [left + right for left, right in merges]
    return [
        *(piece for piece in pieces if piece not in left_out),
        *(piece for piece in made if piece not in pieces),
    ], left_out


def _unigram(
    model: Described, pieces: Mapping[str, Sequence[str]], old: Mapping[str, int]
) -> tuple[list[str], list[str]]:
    """Scores are found before ids, since the model's list is in the order of ids."""
    scores = dict(map(tuple, model["vocab"]))
    model["scores"] = {**scores, **new_scores(scores, list(pieces))}
    return list(pieces), []


def _by_name(model: Described, ids: Mapping[str, int]) -> None:
    """Added tokens of the old tokenizer become part of the model, so that the new ids come after theirs."""
    model["vocab"] = dict(sorted(ids.items(), key=lambda item: item[1]))


def _by_place(model: Described, ids: Mapping[str, int]) -> None:
    """Places without a token get one that no text has; tokens without a score get the lowest there is."""
    scores: dict[str, float] = model.pop("scores")
    lowest = min(score for _, score in model["vocab"])
    names = {number: piece for piece, number in ids.items()}
    places = range(max(names) + 1)
    model["vocab"] = [
        [names.get(place, f"\0unused{place}"), scores.get(names.get(place, ""), lowest)] for place in places
    ]


Family = Callable[[Described, Mapping[str, Sequence[str]], Mapping[str, int]], tuple[list[str], list[str]]]
FAMILY: dict[str, Family] = {"WordPiece": _wordpiece, "BPE": _bpe, "Unigram": _unigram}
"""For each type of model what makes new tokens of words, and which words are left out."""


def new_merges(words: Iterable[Sequence[str]], known: Container[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Merges from left to right: `hep at itis` takes (hep, at) and then (hepat, itis).

    They come after all old merges, so a text first falls into its old pieces, and is left at that where no new merge
    applies. What stands on the way (`hepat`) becomes a token too, shared by all words that begin so. A word on whose
    way there is an old token is left out: a merge to that would change texts without a new word.

    Args:
        words: each as its old pieces, at least two.
        known: old tokens.

    Returns:
        The merges in their order, and the words that are left out.
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
"""By how much a new piece scores above the best path of old ones [nats]: it is taken, and little else changes."""
UNKNOWN = 10.0
"""How far below the worst piece a character scores that no piece has, as in the library."""


def new_scores(scores: Mapping[str, float], pieces: Sequence[str]) -> dict[str, float]:
    """The scores of new pieces.

    Shorter ones come first, so that the best path of a longer one may go over them, and the longer one is taken still.

    Args:
        scores: of the pieces that there are [nats].
        pieces: the new ones.
    """
    known, lowest, found = dict(scores), min(scores.values(), default=0.0) - UNKNOWN, {}
    for piece in sorted(pieces, key=lambda each: (len(each), each)):
        found[piece] = known[piece] = best_path(piece, known, lowest) + MARGIN
    return found


def best_path(text: str, scores: Mapping[str, float], unknown: float) -> float:
    """The highest sum of scores of pieces that make up a text (Viterbi; Kudo 2018, arXiv 1804.10959).

    Args:
        text: to be put together.
        scores: by piece.
        unknown: of a character that is no piece.
    """
    best = [0.0] + [-inf] * len(text)
    for end in range(1, len(text) + 1):
        for start in range(end):
            score = scores.get(text[start:end], unknown if end == start + 1 else -inf)
            best[end] = max(best[end], best[start] + score)
    return best[-1]
