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
from adapt.corpus.screening.evaluation import read_set
from adapt.corpus.shingles import all_ngrams, ngrams
from adapt.corpus.word_hashes import word_hashes

SHORTEST_RUN = 8
"""Texts of fewer words are not looked for inside documents. GPT-3's runs have at least as many."""
MOST_BITS = 24
"""The table of the runs' last bits has at most 2 to the power of this entries, of a byte each."""


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
    last_bits: np.ndarray
    """True at the last bits of each run, so that most other runs need no search: bool [a power of 2]."""
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Texts of each file of each set, where they come from files."""

    def __call__(self, text: str) -> Drop | None:
        """Whether a document holds an evaluation text, as the reason to drop it: that of the largest share.

        Args:
            text: any form; it is normalised here.
        """
        return self.many([text])[0]

    def many(self, texts: Sequence[str]) -> list[Drop | None]:
        """The same of many documents, which takes a small part of the time for each."""
        hashes, owners = word_hashes(texts)
        bounds = np.searchsorted(owners, np.arange(len(texts) + 1))
        reasons: list[Drop | None] = [None] * len(texts)
        documents, places = self._known_runs(hashes, bounds)
        order = np.argsort(documents, kind="stable")
        numbers, begins = np.unique(documents[order], return_index=True)
        for number, known in zip(numbers.tolist(), np.split(places[order], begins[1:]), strict=False):
            reasons[number] = self._reason(hashes[bounds[number] : bounds[number + 1]], np.unique(known))
        return reasons

    def _known_runs(self, hashes: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each run of a document that evaluation texts have: the document's number, and the run's place in `runs`.

        Args:
            hashes: of the words of all documents, one after another.
            bounds: where each document's words start and end: int64 [documents + 1].
        """
        counts = np.diff(bounds)
        short = min(SHORTEST_RUN, self.n)
        lengths = {*self.lengths, *counts[(counts > 0) & (counts < short)].tolist()}
        matches = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        for length, runs in all_ngrams(hashes, sorted(lengths)):
            starts = np.flatnonzero(self.last_bits.take(runs & np.uint64(len(self.last_bits) - 1)))
            places = np.minimum(np.searchsorted(self.runs, runs[starts]), max(len(self.runs) - 1, 0))
            same = self.runs[places] == runs[starts] if len(self.runs) else np.zeros(len(starts), bool)
            starts, places = starts[same], places[same]
            documents = np.searchsorted(bounds, starts, "right") - 1
            looked_for = np.where(counts < short, counts == length, length in self.lengths)[documents]
            inside = looked_for & (starts + length <= bounds[documents + 1])
            matches.append((documents[inside], places[inside]))
        documents, places = (np.concatenate(part) for part in zip(*matches, strict=True))
        return documents, places

    def _reason(self, hashes: np.ndarray, places: np.ndarray) -> Drop | None:
        """Whether a document with some known runs holds an evaluation text.

        Args:
            hashes: of its words.
            places: of the runs in `runs`, each once.
        """
        texts = np.concatenate([self.texts[self.starts[run] : self.starts[run + 1]] for run in places])
        numbers, held = np.unique(texts, return_counts=True)
        own = len(np.unique(ngrams(hashes, self.n))) if len(hashes) >= SHORTEST_RUN else 0
        shares = held / (np.minimum(self.sizes[numbers], own) if own else self.sizes[numbers])
        best = int(shares.argmax())
        return (
            Drop(f"in evaluation set {self.names[self.sets[numbers[best]]]}") if shares[best] >= self.overlap else None
        )


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
            hashes, _ = word_hashes([text])
            if not len(hashes):
                continue
            length = min(n, len(hashes))
            if length >= SHORTEST_RUN:
                lengths.add(length)
            known.append(np.unique(ngrams(hashes, length)))
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
        last_bits=_last_bits(runs),
    )


def _last_bits(runs: np.ndarray) -> np.ndarray:
    size = 2 ** min(MOST_BITS, (16 * len(runs)).bit_length())
    table = np.zeros(size, bool)
    table[runs & np.uint64(size - 1)] = True
    return table


def evaluation_index(corpus: CorpusConfig, further: Mapping[str, Sequence[str]] | None = None) -> EvaluationIndex:
    """The index of `corpus.decontaminate`, read from its files.

    Args:
        corpus: names the files.
        further: texts of other sets, by name.

    Raises:
        DataError: as `adapt.corpus.screening.evaluation.read_set`.
    """
    sets = {evaluation.name: read_set(evaluation, corpus) for evaluation in corpus.decontaminate}
    index = build_index(
        [*((name, chain.from_iterable(by_file.values())) for name, by_file in sets.items()), *(further or {}).items()],
        corpus.decontaminate_ngram,
        corpus.decontaminate_overlap,
    )
    counts = {name: {file: len(texts) for file, texts in by_file.items()} for name, by_file in sets.items()}
    return replace(index, counts=counts)


@dataclass(frozen=True)
class Shared:
    """A check in Ray's object store, which tasks fetch without a copy of its arrays."""

    reference: Any

    def fetch(self) -> Any:
        """The index or the keys, with the check as `many`. To be called once an item: a call takes a while."""
        import ray

        return ray.get(self.reference)
