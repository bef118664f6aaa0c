"""How a tokenizer breaks the words of a domain, and what more tokens would save."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from adapt.config import Config
from adapt.model.size import ModelSize, model_size
from adapt.train.capacity.flops import Workload, forward_flops, workload
from adapt.vocabulary.curve import broken_words, elbow, sizes
from adapt.vocabulary.results import BrokenWord, DomainWords, Extension
from adapt.vocabulary.words import CountedWord, WordReader, count_chunks, count_words

SHOWN = 30
"""Broken words that are named."""


def analyze_words(
    texts: Iterable[str],
    reader: WordReader,
    names: Mapping[int, str],
    min_count: int,
    size: ModelSize | None = None,
    work: Workload | None = None,
    general: DomainWords | None = None,
) -> DomainWords | None:
    """What a tokenizer makes of the words of some texts; None where they have no word.

    Args:
        texts: of the domain.
        reader: the tokenizer's.
        names: the tokenizer's pieces by id, as people write them.
        min_count: words that are rarer do not become tokens.
        size: of the model; None where it cannot be told.
        work: what passes through the model in training.
        general: general text, to compare lengths with.
    """
    chunks, size_in_bytes = count_chunks(texts)
    words = count_words(chunks, reader)
    if not words:
        return None
    counts = np.array([word.count for word in words])
    lengths = np.array([len(word.pieces) for word in words])
    count, pieces = int(counts.sum()), int(counts @ lengths)
    frequent = lengths[counts >= min_count] if counts[0] >= min_count else lengths  # the most frequent come first
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
        worst=[BrokenWord(word.surface, word.count, [names[each] for each in word.pieces]) for word in broken[:SHOWN]],
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
    """What the first words of a list would save as tokens.

    Args:
        broken: the best first.
        numbers: of tokens.
        words: in the corpus.
        pieces: in the corpus.
        size: of the model; None where it cannot be told.
        work: what passes through the model in training.
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
    """FLOPs of a forward pass with so many more tokens; that attention sees more text in as many tokens is left out."""
    return forward_flops(replace(size, head_parameters=size.head_parameters + added * size.hidden), work)


def parameters_and_compute(
    before: Path, after: Path, config: Config, length_saved: float
) -> tuple[int | None, float | None]:
    """The parameters that a model has more, and the share of the FLOPs of training on the same text that it saves.

    Args:
        before: folder of the model that there was.
        after: of the other.
        config: `objective` and `training`.
        length_saved: share of the tokens that the text is shorter by.

    Returns:
        None for both where the dimensions of a model cannot be told.
    """
    old, new = model_size(before), model_size(after)
    if old is None or new is None:
        return None, None
    work = workload(config.objective, config.training.sequence_length)
    left = (1 - length_saved) * forward_flops(new, work) / forward_flops(old, work)
    return new.parameters - old.parameters, 1 - left
