"""Removes documents that contain texts of evaluation sets, recognised by shared runs of words.

A text of n words or more (`corpus.decontaminate_ngram`, 13 as in GPT-3, Brown et al. 2020, appendix C) is known by its
runs of n words. A document is dropped if it contains at least the share `corpus.decontaminate_overlap` of the runs of
one text, so a document with the whole text is always dropped. One changed word breaks up to n runs: at a share of 0.5,
a copy of 100 words with three changes is still found, and a shared quotation is not a copy. A document is also dropped
if that share of its own runs is in one text, because a corpus of sentences may contain a whole abstract. For shorter
texts, a document is dropped if it contains all their words in a row, or, below 8 words, if it consists of them.

Evaluation sets are read as tasks are: texts, second texts, lists of words. A text that cannot be read would stay in the
corpus, so `corpus.max_bad_fraction` applies to every file separately.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from adapt.config import CorpusConfig, EvaluationSet
from adapt.corpus.cleaning.block import Drop
from adapt.corpus.files.formats import Bad, fix_of, format_of
from adapt.corpus.files.lines import TOO_LONG
from adapt.corpus.files.manifest import Manifest, build_manifest, expand_paths
from adapt.corpus.files.records import Reading, Record, check_field, read_objects, read_records
from adapt.corpus.shingles import all_ngrams, ngrams, normalised, words
from adapt.corpus.word_hashes import word_hashes
from adapt.runner.digest import Digests
from adapt.support.errors import ConfigError, DataError

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
        DataError: as `adapt.corpus.decontamination.read_set`.
    """
    sets = {evaluation.name: read_set(evaluation, corpus) for evaluation in corpus.decontaminate}
    index = build_index(
        [*((name, chain.from_iterable(by_file.values())) for name, by_file in sets.items()), *(further or {}).items()],
        corpus.decontaminate_ngram,
        corpus.decontaminate_overlap,
    )
    counts = {name: {file: len(texts) for file, texts in by_file.items()} for name, by_file in sets.items()}
    return replace(index, counts=counts)


FIX = "give files with other fields a set of their own in corpus.decontaminate, with its text_field and pair_field"


def evaluation_manifests(corpus: CorpusConfig, digests: Digests) -> dict[str, Manifest]:
    """The files of each evaluation set, with their digests.

    Raises:
        ConfigError: two sets have one name.
        DataError: a path matches nothing.
    """
    names = [evaluation.name for evaluation in corpus.decontaminate]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"corpus.decontaminate has two sets named {twice}", "give each a name of its own")
    return {
        evaluation.name: build_manifest(CorpusConfig(paths=evaluation.paths), digests)
        for evaluation in corpus.decontaminate
    }


def check_sets(corpus: CorpusConfig) -> None:
    """Looks at the first record of every file of `corpus.decontaminate`.

    Raises:
        DataError: a file is broken at its beginning, or lacks a field.
    """
    for evaluation in corpus.decontaminate:
        for file in expand_paths(evaluation.paths):
            _check_fields(file, evaluation)


def read_set(evaluation: EvaluationSet, corpus: CorpusConfig) -> dict[str, list[str]]:
    """The texts of an evaluation set that can be looked for, by file: those that hold a word.

    Args:
        evaluation: the set.
        corpus: says what one text is in plain text files, and how many records may be unreadable.

    Raises:
        DataError: a file is broken, lacks a field, holds no text, or too many of its records cannot be read.
    """
    return {file: _texts(file, evaluation, corpus) for file in expand_paths(evaluation.paths)}


def _check_fields(file: str, evaluation: EvaluationSet) -> None:
    with _named(evaluation):
        check_field(file, evaluation.text_field, FIX, text=False)
        if evaluation.pair_field:
            check_field(file, evaluation.pair_field, FIX, needs_fields=True, text=False)


@contextmanager
def _named(evaluation: EvaluationSet) -> Iterator[None]:
    """Names the evaluation set in errors about its files."""
    try:
        yield
    except DataError as error:
        fix = error.fix.replace("corpus.paths", "the evaluation set")
        raise DataError(f"evaluation set {evaluation.name}: {error.what}", fix) from error


def _texts(file: str, evaluation: EvaluationSet, corpus: CorpusConfig) -> list[str]:
    _check_fields(file, evaluation)
    kept: list[str] = []
    faults: list[str] = []
    count = 0
    with _named(evaluation):
        for number, texts in _records(file, evaluation, corpus.text_unit):
            count += 1
            if isinstance(texts, Bad):
                faults.append(f"record {number}: {texts}")
            else:
                kept += [text for text in texts if words(normalised(text))]
    where = f"evaluation set {evaluation.name}: {file}"
    known = fix_of(" ".join(faults))
    if len(faults) > corpus.max_bad_fraction * count:
        raise DataError(
            f"{where}: {len(faults)} of {count} records cannot be read, so nothing would keep their texts out of the"
            f" corpus; the first is {faults[0]}",
            f"mend them{known and f' ({known})'}; {FIX}; or raise corpus.max_bad_fraction (now"
            f" {corpus.max_bad_fraction})",
        )
    if not kept:
        raise DataError(
            f"{where} holds no text in the field {evaluation.text_field!r}", f"{FIX}, or leave the file out"
        )
    return kept


def _records(file: str, evaluation: EvaluationSet, unit: str) -> Iterator[tuple[int, list[str] | Bad]]:
    """The number and the texts of each record, or the reason why it cannot be read."""
    if format_of(file)[0] == "text":
        for number, text in enumerate(read_records(file, Reading(text_unit=unit)), 1):
            yield number, _reason(text) if isinstance(text, Bad) else [text]
    else:
        for number, record in read_objects(file):
            yield number, _texts_of(record, evaluation)


def _texts_of(record: Record, evaluation: EvaluationSet) -> list[str] | Bad:
    """The text and, where it does not stand in the text, the second one."""
    if isinstance(record, Bad):
        return _reason(record)
    text = _text(record, evaluation.text_field)
    pair = _text(record, evaluation.pair_field) if evaluation.pair_field else ""
    if isinstance(text, Bad) or isinstance(pair, Bad):
        return text if isinstance(text, Bad) else Bad(f"{pair} in the field {evaluation.pair_field!r}")
    return [text] if pair in text else [text, pair]


def _text(record: Mapping[str, Any], field: str) -> str:
    value = record.get(field)
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value)
    if value is None:
        return Bad("no text")
    return value if isinstance(value, str) else Bad("text is neither a string nor a list of words")


def _reason(fault: Bad) -> Bad:
    """In the words of an evaluation set, whose records have a limit of their own."""
    return Bad("longer than 32 MiB") if fault == TOO_LONG else fault
