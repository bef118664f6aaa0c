"""Removes documents that contain texts of evaluation sets. Documents and texts are compared by runs of words.

A text of n words or more (`corpus.decontaminate_ngram`, 13 as in GPT-3, Brown et al. 2020, appendix C) is represented
by its runs of n words. A document is dropped if it contains at least the share `corpus.decontaminate_overlap` of the
runs of one text, so a document with the whole text is always dropped. One changed word breaks up to n runs: at a share
of 0.5, a copy of 100 words with three changes is still found, and a shared quotation does not count as a copy. A
document is also dropped if at least the same share of the document's runs is in one text, because a corpus of single
sentences may contain an abstract piece by piece. If a text has fewer than n words, a document is dropped if it contains
all words of the text in a row. If a text has fewer than 8 words, only documents that consist of exactly these words are
dropped.

Evaluation sets are read like the files of tasks: texts, second texts and lists of words. Copies of an evaluation text
that cannot be read would stay in the corpus, so `corpus.max_bad_fraction` limits the unreadable records of every file.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from adapt.config import CorpusConfig, EvaluationSet
from adapt.corpus.cleaning.cleaning_blocks import Drop
from adapt.corpus.files.formats import WITHOUT_FIELDS, Bad, fix_of, format_of
from adapt.corpus.files.lines import TOO_LONG
from adapt.corpus.files.manifest import Manifest, build_manifest, expand_paths
from adapt.corpus.files.records import Reading, Record, check_field, read_objects, read_records
from adapt.corpus.shingles import all_ngrams, ngrams, normalised, word_hashes, words
from adapt.runner.digest import Digests
from adapt.support.errors import ConfigError, DataError

SHORTEST_RUN = 8
"""Minimum number of words of an evaluation text that is searched for inside longer documents, as in GPT-3."""
MOST_BITS = 24
"""Maximum number of hash bits that index the table `EvaluationIndex.last_bits`: at most 2^24 entries of one byte."""


@dataclass(frozen=True)
class EvaluationIndex:
    """Index of the runs of words in all evaluation texts. The processes of a machine can share its flat arrays."""

    names: list[str]
    """Names of the evaluation sets."""
    n: int
    """Length of the runs of words [words]. A shorter evaluation text is a single run."""
    overlap: float
    """Minimum share of common runs of words at which a document is dropped. The share is computed both for the runs of
    the evaluation text and for the runs of the document, and the larger value counts."""
    lengths: list[int]
    """All lengths of the runs of words to search for [words]."""
    runs: np.ndarray
    """Hashes of all runs, sorted and unique: uint64 [runs]."""
    starts: np.ndarray
    """For each run, the offset in `texts` at which its evaluation texts start; then the length of `texts`: int64
    [runs + 1]."""
    texts: np.ndarray
    """Indices of the evaluation texts that contain each run, concatenated in the order of `runs`: int64."""
    sizes: np.ndarray
    """Number of distinct runs of words in each evaluation text: int64 [texts]."""
    sets: np.ndarray
    """Index of the evaluation set to which each text belongs: int64 [texts]."""
    last_bits: np.ndarray
    """Table indexed by the last k bits of a hash: True if some run's hash ends in these bits, bool [2^k].

    The table excludes most runs of documents, so that these runs need no binary search in `runs`."""
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Number of evaluation texts, keyed by evaluation set and file; empty if the texts do not come from files."""

    def __call__(self, text: str) -> Drop | None:
        """Returns the reason to drop a document if it contains an evaluation text; otherwise None.

        The reason names the evaluation set of the text with the largest share of common runs.
        """
        return self.many([text])[0]

    def many(self, texts: Sequence[str]) -> list[Drop | None]:
        """Returns, for each document, the reason to drop it, or None. Faster than a call of the index per document."""
        reasons: list[Drop | None] = [None] * len(texts)
        for document, numbers, shares in self._shared(texts):
            best = int(shares.argmax())
            if shares[best] >= self.overlap:
                reasons[document] = Drop(f"in evaluation set {self.names[self.sets[numbers[best]]]}")
        return reasons

    def contained(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the indices of all evaluation texts for which a document would be dropped: int64, without order."""
        found = [numbers[shares >= self.overlap] for _, numbers, shares in self._shared(texts)]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    def _shared(self, texts: Sequence[str]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yields, for each document that shares runs with evaluation texts, its index and the result of `_shares`."""
        hashes, owners = word_hashes(texts)
        bounds = np.searchsorted(owners, np.arange(len(texts) + 1))
        documents, places = self._known_runs(hashes, bounds)
        order = np.argsort(documents, kind="stable")
        numbers, begins = np.unique(documents[order], return_index=True)
        for number, known in zip(numbers.tolist(), np.split(places[order], begins[1:]), strict=False):
            yield number, *self._shares(hashes[bounds[number] : bounds[number + 1]], np.unique(known))

    def _known_runs(self, hashes: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Finds the runs of words that documents have in common with evaluation texts.

        Args:
            hashes: hashes of the words of all documents, one after another: uint64 [words].
            bounds: offset in `hashes` at which each document starts, and the end of the last: int64 [documents + 1].

        Returns:
            Two arrays with an entry per common run: the index of the document, and the index of the run in `runs`.
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

    def _shares(self, hashes: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the evaluation texts that a document shares runs with, and the share of common runs with each.

        Args:
            hashes: hashes of the document's words: uint64 [words].
            places: indices in `runs` of the runs that the document shares, without repeats.

        Returns:
            Indices of the texts, int64 [texts]; and for each text the larger of two shares, float64 [texts]: the common
            runs as a share of the text's runs and, unless the document is short, as a share of the document's runs.
        """
        texts = np.concatenate([self.texts[self.starts[run] : self.starts[run + 1]] for run in places])
        numbers, held = np.unique(texts, return_counts=True)
        own = len(np.unique(ngrams(hashes, self.n))) if len(hashes) >= SHORTEST_RUN else 0
        return numbers, held / (np.minimum(self.sizes[numbers], own) if own else self.sizes[numbers])


def build_index(sets: Sequence[tuple[str, Iterable[str]]], n: int, overlap: float) -> EvaluationIndex:
    """Builds the index of the texts of evaluation sets.

    Args:
        sets: name and texts of each set.
        n: length of the runs [words].
        overlap: minimum share of common runs at which a document is dropped (`EvaluationIndex.overlap`).
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
    """Builds the index of `corpus.decontaminate` from the files of its sets.

    Args:
        corpus: configuration that names the evaluation sets and their files.
        further: texts of further evaluation sets, keyed by the name of the set.

    Raises:
        DataError: a file cannot be read (see `adapt.corpus.decontamination.read_set`).
    """
    sets = {evaluation.name: read_set(evaluation, corpus) for evaluation in corpus.decontaminate}
    index = build_index(
        [*((name, chain.from_iterable(by_file.values())) for name, by_file in sets.items()), *(further or {}).items()],
        corpus.decontaminate_ngram,
        corpus.decontaminate_overlap,
    )
    counts = {name: {file: len(texts) for file, texts in by_file.items()} for name, by_file in sets.items()}
    return replace(index, counts=counts)


FIX = (
    "list files with other fields as a separate set in corpus.decontaminate, with the text_field and pair_field of"
    " these files"
)


def evaluation_manifests(corpus: CorpusConfig, digests: Digests) -> dict[str, Manifest]:
    """Returns the files of each evaluation set, with their digests.

    Raises:
        ConfigError: two sets have the same name.
        DataError: a path matches nothing.
    """
    names = [evaluation.name for evaluation in corpus.decontaminate]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"corpus.decontaminate has two sets named {twice}", "give each set a different name")
    return {
        evaluation.name: build_manifest(CorpusConfig(paths=evaluation.paths), digests)
        for evaluation in corpus.decontaminate
    }


def check_sets(corpus: CorpusConfig) -> None:
    """Checks the first record of every file of `corpus.decontaminate`.

    Raises:
        DataError: a file is broken at its beginning, or lacks one of the fields of its set.
    """
    for evaluation in corpus.decontaminate:
        for file in expand_paths(evaluation.paths):
            _check_fields(file, evaluation)


def read_set(evaluation: EvaluationSet, corpus: CorpusConfig) -> dict[str, list[str]]:
    """Reads the texts of an evaluation set, keyed by file. Texts without words are left out.

    Args:
        evaluation: the evaluation set.
        corpus: configuration that sets the unit of plain text files (lines or paragraphs) and the allowed share of
            unreadable records.

    Raises:
        DataError: a file is broken, lacks a field, contains no text, or too many of its records cannot be read.
    """
    return {file: _texts(file, evaluation, corpus) for file in expand_paths(evaluation.paths)}


def _check_fields(file: str, evaluation: EvaluationSet) -> None:
    with _named(evaluation):
        check_field(file, evaluation.text_field, FIX, text=False)
        if evaluation.pair_field:
            check_field(file, evaluation.pair_field, FIX, needs_fields=True, text=False)


@contextmanager
def _named(evaluation: EvaluationSet) -> Iterator[None]:
    """Adds the name of the evaluation set to errors that the `with` block raises about the files of the set."""
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
            f"{where}: {len(faults)} of {count} records cannot be read, so their texts could not be removed from the"
            f" corpus; the first is {faults[0]}",
            f"correct these records{known and f' ({known})'}; {FIX}; or raise corpus.max_bad_fraction (now"
            f" {corpus.max_bad_fraction})",
        )
    if not kept:
        raise DataError(
            f"{where} holds no text in the field {evaluation.text_field!r}", f"{FIX}, or remove the file from the set"
        )
    return kept


def _records(file: str, evaluation: EvaluationSet, unit: str) -> Iterator[tuple[int, list[str] | Bad]]:
    """Yields each record's number, from 1, and either the record's texts or the reason why it cannot be read."""
    if format_of(file)[0] in WITHOUT_FIELDS:
        for number, text in enumerate(read_records(file, Reading(text_unit=unit)), 1):
            yield number, _reason(text) if isinstance(text, Bad) else [text]
    else:
        for number, record in read_objects(file):
            yield number, _texts_of(record, evaluation)


def _texts_of(record: Record, evaluation: EvaluationSet) -> list[str] | Bad:
    """Returns the texts of a record: its text, and its second text unless the first one contains it."""
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
    """Returns the reason why a record is bad. If the record is too long, the reason names the limit, 32 MiB."""
    return Bad("longer than 32 MiB") if fault == TOO_LONG else fault
