"""Which words of a domain, or parts of words, may become tokens, the best first."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import log
from pathlib import Path

from tokenizers import Tokenizer

from adapt.support.errors import ConfigError, DataError
from adapt.vocabulary.analysis import broken_words
from adapt.vocabulary.word_reader import CountedWord, WordReader

LONGEST = 10
"""Pieces of the longest beginning of a word that may become a token, as in arXiv 2109.07460."""

LETTERS = 60
"""Longer strings are no words, but codes, and pages put together wrongly."""


def by_saved(words: Sequence[CountedWord], reader: WordReader, min_count: int) -> list[CountedWord]:
    """Whole words, those first that would save most pieces."""
    return [word for word in broken_words(words, min_count) if _is_plain(word) and not word.unknown]


def by_divergence(
    words: Sequence[CountedWord], general: Sequence[CountedWord], reader: WordReader, min_count: int
) -> list[CountedWord]:
    """Beginnings of words, of two pieces or more, by how their last piece follows the others.

    A sequence s of pieces that goes on from t by one has P(s) = C(s) / C(t) in a corpus. Its score is
    P_D log(P_D / P_S), D being the domain and S general text, with add-one smoothing in S.

    Args:
        words: of the domain.
        general: of general text.
        reader: the tokenizer's.
        min_count: sequences that the domain has more rarely are left out.
    """
    ours, theirs = _beginnings(words), _beginnings(general)
    scores = {}
    for sequence, count in ours.items():
        if len(sequence) > 1 and count >= min_count:
            share = count / ours[sequence[:-1]]
            other = (theirs[sequence] + 1) / (theirs[sequence[:-1]] + reader.size)
            scores[sequence] = share * log(share / other)
    ordered = sorted(scores, key=lambda sequence: (-scores[sequence], -ours[sequence], sequence))
    found = (_joined(sequence, ours[sequence], reader) for sequence in ordered if scores[sequence] > 0)
    return [word for word in found if _is_plain(word)]


def _beginnings(words: Iterable[CountedWord]) -> Counter[tuple[int, ...]]:
    counts: Counter[tuple[int, ...]] = Counter()
    for word in words:
        if not word.unknown:
            for length in range(1, min(len(word.pieces), LONGEST) + 1):
                counts[word.pieces[:length]] += word.count
    return counts


def _joined(sequence: tuple[int, ...], count: int, reader: WordReader) -> CountedWord:
    piece = reader.joined(sequence)
    return CountedWord(piece, reader.surface(piece), count, sequence, False)


def by_training(
    words: Sequence[CountedWord], trained: Tokenizer, reader: WordReader, min_count: int
) -> list[CountedWord]:
    """Pieces that a tokenizer of the domain breaks its words into, those first that would save most.

    Args:
        words: of the domain.
        trained: a tokenizer of the same kind, trained on the domain.
        reader: that of the tokenizer which is to be extended.
        min_count: pieces that the domain has more rarely are left out.
    """
    counts: Counter[str] = Counter()
    for word in words:
        for token in trained.model.tokenize(word.word):
            counts[token.value] += word.count
    found = [
        CountedWord(piece, reader.surface(piece), count, reader.parts(piece), False)
        for piece, count in counts.items()
        if count >= min_count and not reader.knows(piece)
    ]
    broken = [piece for piece in found if len(piece.pieces) > 1 and reader.unknown not in piece.pieces]
    return [piece for piece in broken_words(broken, min_count) if _is_plain(piece)]


def from_file(
    file: Path, words: Sequence[CountedWord], reader: WordReader, special: Iterable[str]
) -> list[CountedWord]:
    """The words of a file, a word a line, in its order.

    Args:
        file: as UTF-8; empty lines do not count.
        words: of the domain, for how often each comes.
        reader: the tokenizer's.
        special: special tokens.

    Raises:
        ConfigError: there is no such file.
        DataError: a line is a token already, holds a special token, is more than one word, or has what the tokenizer
            does not know.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"vocabulary.candidates: {file} cannot be read: {error}",
            "give saved, divergence, trained, or a file with a word a line",
        ) from error
    counts = {word.word: word.count for word in words}
    found: dict[str, CountedWord] = {}
    for number, line in enumerate(lines, start=1):
        if surface := line.strip():
            word = _asked_for(surface, f"{file}, line {number}: {surface!r}", reader, {*special})
            found.setdefault(word, CountedWord(word, surface, counts.get(word, 0), reader.pieces(word), False))
    if not found:
        raise DataError(f"{file} has no words", "write a word a line")
    return list(found.values())


def _asked_for(surface: str, place: str, reader: WordReader, special: set[str]) -> str:
    """The one word that a line is, in the letters of the model."""
    if clash := [token for token in special if token in surface]:
        raise DataError(f"{place} holds the special token {clash[0]}", "take it out of the file")
    parts = reader.words(surface)
    if len(parts) != 1 or len(surface.split()) != 1:
        raise DataError(f"{place} is {len(parts)} words for this tokenizer: {' '.join(parts)}", "write a word a line")
    (word,) = parts
    if reader.knows(word):
        raise DataError(f"{place} is a token already", "take it out of the file")
    pieces = reader.pieces(word)
    if reader.unknown in pieces or len(pieces) < 2:
        raise DataError(f"{place} has letters that the tokenizer does not know", "take it out of the file")
    return word


def _is_plain(word: CountedWord) -> bool:
    """Whether people write it so: letters or digits at both ends, a letter in it, no part of a character."""
    surface = word.surface
    if not 0 < len(surface) <= LETTERS or not (surface[0].isalnum() and surface[-1].isalnum()):
        return False
    return any(map(str.isalpha, surface)) and surface.isprintable() and "\N{REPLACEMENT CHARACTER}" not in surface


def pieces_of(words: Iterable[CountedWord], names: Mapping[int, str]) -> dict[str, list[str]]:
    """For each word its pieces by name, as `adapt.vocabulary.rebuild` takes them."""
    return {word.word: [names[piece] for piece in word.pieces] for word in words}
