"""Finds words of a domain, or parts of words, that may become tokens, the best first."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import log
from pathlib import Path

from tokenizers import Tokenizer

from adapt.support.errors import ConfigError, DataError
from adapt.vocabulary.analysis import broken_words
from adapt.vocabulary.word_reader import CountedWord, WordReader

LONGEST = 10
"""Largest number of pieces in a beginning of a word that may become a token, as in arXiv 2109.07460."""

LETTERS = 60
"""Largest length of a word [characters]. Longer strings are codes or badly extracted text."""


def by_saved(words: Sequence[CountedWord], reader: WordReader, min_count: int) -> list[CountedWord]:
    """Returns whole words, ordered by the number of pieces that they would save as tokens."""
    return [word for word in broken_words(words, min_count) if _is_plain(word) and not word.unknown]


def by_divergence(
    words: Sequence[CountedWord], general: Sequence[CountedWord], reader: WordReader, min_count: int
) -> list[CountedWord]:
    """Returns beginnings of words with at least two pieces, ordered by their divergence from general text.

    Let the sequence s be the sequence t followed by one more piece. The probability of s in a corpus is P(s) = C(s) /
    C(t), where C counts occurrences at the beginning of words. The score of s is P_D log(P_D / P_S), where D is the
    domain and S general text, with add-one smoothing in S.

    Args:
        words: the counted words of the domain.
        general: the counted words of general text.
        reader: the word reader of the tokenizer.
        min_count: sequences that are rarer in the domain are left out.
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
    """Returns the pieces of a tokenizer that was trained on the domain, ordered by savings.

    The savings of a piece are the number of pieces that the corpus would save if it became a token.

    Args:
        words: the counted words of the domain.
        trained: a tokenizer of the same kind, trained on the domain.
        reader: the word reader of the tokenizer that is extended.
        min_count: pieces that are rarer in the domain are left out.
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
    """Reads words from a file with one word per line, in the order of the file.

    Args:
        file: text file in UTF-8; empty lines are ignored.
        words: the counted words of the domain, for the number of occurrences.
        reader: the word reader of the tokenizer.
        special: the special tokens.

    Raises:
        ConfigError: the file cannot be read.
        DataError: the file has no words, or a line is already a token, contains a special token, is more than one
            word, or has letters that the tokenizer does not know.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"vocabulary.candidates: {file} cannot be read: {error}",
            "give saved, divergence, trained, or a file with one word per line",
        ) from error
    counts = {word.word: word.count for word in words}
    found: dict[str, CountedWord] = {}
    for number, line in enumerate(lines, start=1):
        if surface := line.strip():
            word = _asked_for(surface, f"{file}, line {number}: {surface!r}", reader, {*special})
            found.setdefault(word, CountedWord(word, surface, counts.get(word, 0), reader.pieces(word), False))
    if not found:
        raise DataError(f"{file} has no words", "write one word per line")
    return list(found.values())


def _asked_for(surface: str, place: str, reader: WordReader, special: set[str]) -> str:
    """Returns the word of a line, in the tokenizer's spelling."""
    if clash := [token for token in special if token in surface]:
        raise DataError(f"{place} holds the special token {clash[0]}", "take it out of the file")
    parts = reader.words(surface)
    if len(parts) != 1 or len(surface.split()) != 1:
        raise DataError(
            f"{place} is {len(parts)} words for this tokenizer: {' '.join(parts)}", "write one word per line"
        )
    (word,) = parts
    if reader.knows(word):
        raise DataError(f"{place} is a token already", "take it out of the file")
    pieces = reader.pieces(word)
    if reader.unknown in pieces or len(pieces) < 2:
        raise DataError(f"{place} has letters that the tokenizer does not know", "take it out of the file")
    return word


def _is_plain(word: CountedWord) -> bool:
    """Returns whether a word begins and ends with a letter or digit, has a letter, and has no incomplete character."""
    surface = word.surface
    if not 0 < len(surface) <= LETTERS or not (surface[0].isalnum() and surface[-1].isalnum()):
        return False
    return any(map(str.isalpha, surface)) and surface.isprintable() and "\N{REPLACEMENT CHARACTER}" not in surface


def pieces_of(words: Iterable[CountedWord], names: Mapping[int, str]) -> dict[str, list[str]]:
    """Returns the names of the pieces of each word, for `adapt.vocabulary.rebuild`."""
    return {word.word: [names[piece] for piece in word.pieces] for word in words}
