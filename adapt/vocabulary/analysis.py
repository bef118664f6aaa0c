"""Measures how a tokenizer splits the words of a domain, and how many pieces new tokens would save.

Candidates are words or parts of words of the domain that may become tokens. Lists of candidates begin with the best.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import log
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from adapt.config import Config
from adapt.model.locate import Pretrained
from adapt.model.size import ModelSize, model_size
from adapt.model.tokenizer import load_text_tokenizer
from adapt.support.errors import ConfigError, DataError
from adapt.train.capacity.flops import Workload, forward_flops, workload
from adapt.vocabulary.vocabulary_results import BrokenWord, DomainWords, Extension, empty_corpus
from adapt.vocabulary.word_reader import CountedWord, WordReader, count_chunks, count_words

SHOWN = 30
"""Maximum number of words that are listed in the result as examples of split words."""


def analyze_domains(
    config: Config, pretrained: Pretrained, texts: Mapping[str, Iterable[str]], general: str
) -> tuple[int, dict[str, DomainWords]]:
    """Returns the number of tokens in a tokenizer's vocabulary, and how the tokenizer splits the words of each domain.

    Args:
        config: the job's configuration (`vocabulary`, `objective` and the sequence length).
        pretrained: the model, for its tokenizer and its dimensions.
        texts: documents, keyed by domain. General text must come first, if there is any.
        general: key of the general text in `texts`. Domains are compared with this text.

    Raises:
        DataError: a domain has no words.
    """
    tokenizer = load_text_tokenizer(pretrained)
    reader = WordReader(tokenizer.backend_tokenizer)
    names = {number: reader.surface(piece) for piece, number in tokenizer.get_vocab().items()}
    size, work = model_size(pretrained.model), workload(config.objective, config.training.sequence_length)
    found: dict[str, DomainWords] = {}
    for name, documents in texts.items():
        words = analyze_words(documents, reader, names, config.vocabulary.min_count, size, work, found.get(general))
        if words is None:
            raise empty_corpus(name)
        found[name] = words
    return len(tokenizer), found


def analyze_words(
    texts: Iterable[str],
    reader: WordReader,
    names: Mapping[int, str],
    min_count: int,
    size: ModelSize | None = None,
    work: Workload | None = None,
    general: DomainWords | None = None,
) -> DomainWords | None:
    """Analyzes how a tokenizer splits the words of some texts; returns None if they have no words.

    Args:
        texts: the documents of a domain.
        reader: the word reader of the tokenizer.
        names: the tokenizer's pieces by id, as readable text.
        min_count: words with fewer occurrences are not candidates for tokens.
        size: the dimensions of the model; None if they are not known.
        work: sequence length and objective, which determine the FLOPs per token.
        general: the result for general text. Its number of pieces per byte is compared with that of `texts`.
    """
    chunks, size_in_bytes = count_chunks(texts)
    words = count_words(chunks, reader)
    if not words:
        return None
    counts = np.array([word.count for word in words])
    lengths = np.array([len(word.pieces) for word in words])
    count, pieces = int(counts.sum()), int(counts @ lengths)
    frequent = lengths[counts >= min_count] if counts[0] >= min_count else lengths  # words are sorted by count
    broken = broken_words(words, min_count)
    best = elbow([word.saved for word in broken])
    shown = sorted({*sizes(len(broken)), best})
    return DomainWords(
        bytes=size_in_bytes,
        words=count,
        distinct=len(words),
        pieces=pieces,
        fertility=pieces / count,
        fragment_score=float(frequent.mean()),
        broken_share=int(counts[lengths > 1].sum()) / count,
        unknown_share=sum(word.count for word in words if word.unknown) / count,
        byte_share=_byte_pieces(words, reader) / max(pieces, 1),
        length_overhead=(pieces / size_in_bytes) / (general.pieces / general.bytes) - 1 if general else None,
        worst=[
            BrokenWord(word.surface, word.count, [names[piece] for piece in word.pieces]) for word in broken[:SHOWN]
        ],
        candidates=len(broken),
        elbow=best,
        curve=extensions(broken, shown, count, pieces, size, work),
    )


def _byte_pieces(words: Sequence[CountedWord], reader: WordReader) -> int:
    parts = reader.bytes
    return sum(
        word.count * sum(map(parts.__contains__, word.pieces)) for word in words if not parts.isdisjoint(word.pieces)
    )


def extensions(
    broken: Sequence[CountedWord],
    numbers: Sequence[int],
    words: int,
    pieces: int,
    size: ModelSize | None,
    work: Workload | None,
) -> list[Extension]:
    """Computes what is saved if the first n words of a list become tokens, for several values of n.

    Args:
        broken: split words, ordered by the number of pieces that they would save.
        numbers: the numbers of new tokens for which savings are computed.
        words: number of words in the corpus.
        pieces: number of pieces in the corpus.
        size: the dimensions of the model; None if they are not known.
        work: sequence length and objective, from which FLOPs per token follow.
    """
    saved = [0, *accumulate(word.count * (len(word.pieces) - 1) for word in broken)]
    found = []
    for number in numbers:
        left = pieces - saved[number]
        compute = (
            1 - left * _work_of_a_token(size, work, number) / (pieces * _work_of_a_token(size, work, 0))
            if (size and work and pieces)
            else None
        )
        found.append(Extension(number, left / words, saved[number] / max(pieces, 1), compute))
    return found


def _work_of_a_token(size: ModelSize, work: Workload, added: int) -> float:
    """Returns the FLOPs of a forward pass per token, for a model with `added` more tokens in its vocabulary.

    The sequence length in tokens stays the same, although a sequence then contains more text.
    """
    return forward_flops(replace(size, head_parameters=size.head_parameters + added * size.hidden), work)


def parameters_and_compute(
    before: Path, after: Path, config: Config, length_saved: float
) -> tuple[int | None, float | None]:
    """Returns the number of added parameters, and the saved share of the FLOPs of training on the same text.

    Args:
        before: folder of the original model.
        after: folder of the model with another vocabulary.
        config: the job's configuration (`objective` and `training`).
        length_saved: share of the text's tokens that the new vocabulary saves.

    Returns:
        The two numbers. Both are None if the dimensions of one of the models are not known.
    """
    old, new = model_size(before), model_size(after)
    if old is None or new is None:
        return None, None
    work = workload(config.objective, config.training.sequence_length)
    left = (1 - length_saved) * forward_flops(new, work) / forward_flops(old, work)
    return new.parameters - old.parameters, 1 - left


MOST = 20_000
"""Maximum number of new tokens for which savings are computed."""


def broken_words(words: Sequence[CountedWord], min_count: int) -> list[CountedWord]:
    """Returns the 20,000 words that would save most pieces as tokens, of those with `min_count` occurrences."""
    broken = [word for word in words if word.saved > 0 and word.count >= min_count]
    return sorted(broken, key=lambda word: (-word.saved, word.word))[:MOST]


def elbow(saved: Sequence[int]) -> int:
    """Returns the number of tokens after which each further token saves less than the mean over all tokens.

    `saved` lists the number of pieces that each token saves, the highest first.

    At this number, the curve of total savings is farthest above the straight line between its ends (Kneedle, Satopaa et
    al. 2011).
    """
    if not saved:
        return 0
    mean = sum(saved) / len(saved)
    heights = [total - mean * (number + 1) for number, total in enumerate(accumulate(saved))]
    return 1 + max(range(len(heights)), key=heights.__getitem__)


def sizes(most: int) -> list[int]:
    """Returns the numbers of new tokens for which savings are computed: 0, 10, 20, 50, 100, 200, 500, ..., `most`."""
    steps = [digit * 10**power for power in range(1, 7) for digit in (1, 2, 5)]
    return [0, *(step for step in steps if step < most), *([most] if most else [])]


LONGEST = 10
"""Maximum number of pieces in a prefix of a word that may become a token, as in arXiv 2109.07460."""

LETTERS = 60
"""Maximum length of a word [characters]. Longer strings are codes or badly extracted text."""


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

    Sequences with fewer than `min_count` occurrences in the domain are left out.
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

    The savings of a piece are the number of pieces that the corpus would save if it became a token. Pieces with fewer
    than `min_count` occurrences in the domain are left out.
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
            "set vocabulary.candidates to saved, divergence, trained, or a file with one word per line",
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
    """Checks the word of a line in a user's file, and returns the word in the tokenizer's spelling."""
    if clash := [token for token in special if token in surface]:
        raise DataError(f"{place} contains the special token {clash[0]}", "remove this line from the file")
    parts = reader.words(surface)
    if len(parts) != 1 or len(surface.split()) != 1:
        raise DataError(
            f"{place} is {len(parts)} words for this tokenizer: {' '.join(parts)}", "write one word per line"
        )
    (word,) = parts
    if reader.knows(word):
        raise DataError(f"{place} is a token already", "remove this line from the file")
    pieces = reader.pieces(word)
    if reader.unknown in pieces or len(pieces) < 2:
        raise DataError(f"{place} has letters that the tokenizer does not know", "remove this line from the file")
    return word


def _is_plain(word: CountedWord) -> bool:
    """Returns whether a word begins and ends with a letter or digit, has a letter, and has no incomplete character."""
    surface = word.surface
    if not 0 < len(surface) <= LETTERS or not (surface[0].isalnum() and surface[-1].isalnum()):
        return False
    return any(map(str.isalpha, surface)) and surface.isprintable() and "\N{REPLACEMENT CHARACTER}" not in surface


def pieces_of(words: Iterable[CountedWord], names: Mapping[int, str]) -> dict[str, list[str]]:
    """Returns the names of the pieces of each word, for `adapt.vocabulary.extension`."""
    return {word.word: [names[piece] for piece in word.pieces] for word in words}
