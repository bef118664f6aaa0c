"""Texts of evaluation sets leave the corpus: found by the runs of words that a document shares with one of them.

Texts of n words and more (`corpus.decontaminate_ngram`, 13 as in GPT-3, Brown et al. 2020, appendix C) are known by
their runs of n words. A document leaves that holds at least the share `corpus.decontaminate_overlap` of the runs of one
text, so one that contains the whole text always leaves. A changed word breaks up to n runs: at one half, a copy of 100
words in which three were changed is still found, while a shared quotation or stock phrase is no copy. A document also
leaves that is a piece of a text, with that share of its own runs: a corpus of sentences may hold a whole abstract.
Shorter texts are whole: a document leaves that contains all their words in a row, or, below 8 words, where such a match
means little, that consists of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from adapt.config import CorpusConfig
from adapt.corpus.cleaning.block import Drop
from adapt.corpus.screening.clean import Check
from adapt.corpus.screening.evaluation import read_set
from adapt.corpus.shingles import hashed, ngrams, normalised, words

SHORTEST_RUN = 8
"""Texts of fewer words are not looked for inside documents. GPT-3's runs have at least as many."""


@dataclass(frozen=True)
class EvaluationIndex:
    """The runs of words of all evaluation texts; flat arrays, which processes of a machine share."""

    names: list[str]
    """Names of the evaluation sets."""
    n: int
    """Words of a run."""
    overlap: float
    """A document leaves if it shares at least this part of an evaluation text's runs, or of its own runs."""
    lengths: list[int]
    """All lengths of runs that are to be looked for [words]."""
    runs: np.ndarray
    """Hashes, sorted, each once: uint64 [runs]."""
    starts: np.ndarray
    """Where each run's texts start in `texts`: int64 [runs + 1]."""
    texts: np.ndarray
    """Texts that hold a run: int64."""
    sizes: np.ndarray
    """How many different runs a text has: int64 [texts]."""
    sets: np.ndarray
    """The evaluation set of a text: int64 [texts]."""
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Texts of each file of each set, where they come from files."""

    def __call__(self, text: str) -> Drop | None:
        """Whether a document holds an evaluation text, as the reason to drop it: that of the largest share.

        Args:
            text: any form; it is normalised here.
        """
        found = hashed(words(normalised(text)))
        runs = np.unique(np.concatenate([ngrams(found, length) for length in self._lengths_in(len(found))]))
        places = np.searchsorted(self.runs, runs)
        places = places[self.runs[np.minimum(places, len(self.runs) - 1)] == runs] if len(self.runs) else places[:0]
        if not len(places):
            return None
        texts = np.concatenate([self.texts[self.starts[place] : self.starts[place + 1]] for place in places])
        numbers, held = np.unique(texts, return_counts=True)
        own = len(np.unique(ngrams(found, self.n))) if len(found) >= SHORTEST_RUN else 0
        shares = held / (np.minimum(self.sizes[numbers], own) if own else self.sizes[numbers])
        best = int(shares.argmax())
        return (
            Drop(f"in evaluation set {self.names[self.sets[numbers[best]]]}") if shares[best] >= self.overlap else None
        )

    def _lengths_in(self, number: int) -> list[int]:
        return [number] if number < min(SHORTEST_RUN, self.n) else self.lengths


def build_index(sets: Sequence[tuple[str, Iterable[str]]], n: int, overlap: float) -> EvaluationIndex:
    """The index of some evaluation sets.

    Args:
        sets: names and texts.
        n: length of the runs [words].
        overlap: share of a text's runs, or of a document's own, from which on the document leaves.
    """
    known: list[np.ndarray] = []
    of_set: list[int] = []
    lengths = {n}
    for number, (_, texts) in enumerate(sets):
        for text in texts:
            found = hashed(words(normalised(text)))
            if not len(found):
                continue
            length = min(n, len(found))
            if length >= SHORTEST_RUN:
                lengths.add(length)
            known.append(np.unique(ngrams(found, length)))
            of_set.append(number)
    sizes = np.array([len(runs) for runs in known], np.int64)
    flat = np.concatenate([*known, np.zeros(0, np.uint64)])
    owners = np.repeat(np.arange(len(known)), sizes)
    order = np.argsort(flat, kind="stable")
    runs, starts = np.unique(flat[order], return_index=True)
    return EvaluationIndex(
        names=[name for name, _ in sets],
        n=n,
        overlap=overlap,
        lengths=sorted(lengths),
        runs=runs,
        starts=np.append(starts, len(flat)),
        texts=owners[order],
        sizes=sizes,
        sets=np.array(of_set, np.int64),
    )


def evaluation_index(corpus: CorpusConfig) -> EvaluationIndex:
    """The index of `corpus.decontaminate`, read from its files.

    Raises:
        DataError: as `adapt.corpus.screening.evaluation.read_set`.
    """
    found = {each.name: read_set(each, corpus) for each in corpus.decontaminate}
    index = build_index(
        [(name, chain.from_iterable(texts.values())) for name, texts in found.items()],
        corpus.decontaminate_ngram,
        corpus.decontaminate_overlap,
    )
    counts = {name: {file: len(each) for file, each in texts.items()} for name, texts in found.items()}
    return replace(index, counts=counts)


@dataclass(frozen=True)
class Shared:
    """A check in Ray's object store, which tasks fetch without a copy of its arrays."""

    reference: Any

    def fetch(self) -> Check:
        """The check. To be called once an item: a call takes as long as checking a short document."""
        import ray

        check: Check = ray.get(self.reference)
        return check
