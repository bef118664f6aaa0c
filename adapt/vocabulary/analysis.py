"""Measures how a tokenizer breaks the words of a domain into pieces, and how many pieces more tokens would save."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from adapt.config import Config
from adapt.model.locate import Pretrained
from adapt.model.size import ModelSize, model_size
from adapt.model.tokenizer import load_text_tokenizer
from adapt.train.capacity.flops import Workload, forward_flops, workload
from adapt.vocabulary.vocabulary_results import BrokenWord, DomainWords, Extension, empty_corpus
from adapt.vocabulary.word_reader import CountedWord, WordReader, count_chunks, count_words

SHOWN = 30
"""Broken words that are named."""


def analyze_domains(
    config: Config, pretrained: Pretrained, texts: Mapping[str, Iterable[str]], general: str
) -> tuple[int, dict[str, DomainWords]]:
    """Returns the number of a tokenizer's tokens, and how it breaks the words of each domain.

    Args:
        config: `vocabulary`, `objective` and the length of sequences.
        pretrained: the model, for its tokenizer and its dimensions.
        texts: documents by domain.
        general: the name among these of general text, which the others are compared with; it comes first.

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


MOST = 20_000
"""Tokens that a curve goes up to."""


def broken_words(words: Sequence[CountedWord], min_count: int) -> list[CountedWord]:
    """Words that would save pieces as tokens, those first that would save most of them.

    Args:
        words: of a corpus.
        min_count: rarer ones are left out.
    """
    broken = [word for word in words if word.saved > 0 and word.count >= min_count]
    return sorted(broken, key=lambda word: (-word.saved, word.word))[:MOST]


def elbow(saved: Sequence[int]) -> int:
    """The number of tokens after which a further one saves less than the mean of all.

    This is where the curve of what is saved, from no token to all, lies farthest above its chord (Satopaa et al. 2011,
    Kneedle).

    Args:
        saved: by each token, the highest first.
    """
    if not saved:
        return 0
    mean = sum(saved) / len(saved)
    heights = [total - mean * (number + 1) for number, total in enumerate(accumulate(saved))]
    return 1 + max(range(len(heights)), key=heights.__getitem__)


def sizes(most: int) -> list[int]:
    """Numbers of tokens to show: 0, then 1, 2 and 5 of each power of ten, and all."""
    steps = [digit * 10**power for power in range(1, 7) for digit in (1, 2, 5)]
    return [0, *(step for step in steps if step < most), *([most] if most else [])]
