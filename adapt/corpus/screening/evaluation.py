"""The texts of evaluation sets, read as tasks are: texts, second texts, lists of words. What cannot be read is refused.

A text that is passed over is one that nobody keeps out of the corpus, so every file by itself is held to
`corpus.max_bad_fraction`: a file of another form does not hide among larger ones.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from adapt.config import CorpusConfig, EvaluationSet
from adapt.corpus.files.contents import fix_of
from adapt.corpus.files.fields import check_field
from adapt.corpus.files.formats import Bad, format_of
from adapt.corpus.files.lines import TOO_LONG
from adapt.corpus.files.manifest import Manifest, build_manifest, expand_paths
from adapt.corpus.files.records import Reading, Record, read_objects, read_records
from adapt.corpus.shingles import normalised, words
from adapt.errors import ConfigError, DataError
from adapt.runner.digest import Digests

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
