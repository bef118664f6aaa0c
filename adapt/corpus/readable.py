"""A first look at every file of a corpus, so that what is wrong with it costs a second and not a job."""

import os
from concurrent.futures import ThreadPoolExecutor

from adapt.config import CorpusConfig
from adapt.console import log
from adapt.corpus.files.fields import TEXT_FIX, check_field
from adapt.corpus.files.formats import DELIMITERS, MIB, format_of
from adapt.corpus.files.hub import check_dataset
from adapt.corpus.files.location import is_url
from adapt.corpus.files.manifest import LISTERS, Manifest
from adapt.corpus.files.opened import broken_files
from adapt.corpus.files.records import Reading, check_quotes
from adapt.corpus.screening.evaluation import check_sets
from adapt.errors import DataError

SMALL_BYTES = 16 * MIB
"""Up to this size a first look reads csv and tsv files whole, to find rows that a quote would swallow."""


def check_readable(manifest: Manifest, corpus: CorpusConfig, entity_field: str | None = None) -> None:
    """Looks at the first record of every file, also of evaluation sets, before anything is started.

    Raises:
        DataError: all files are empty, or one is broken at its beginning or lacks the text field, or the entity field;
            or a file of an evaluation set lacks one of its own.
        StorageError: a store does not answer.
    """
    check_sets(corpus)
    fields = {corpus.text_field: TEXT_FIX}
    if entity_field is not None:
        fields[entity_field] = "set objective.entity_field"
    if corpus.source == "dataset":
        for name, fix in fields.items():
            check_dataset(corpus, manifest.parts[0].stamp, name, fix)
    elif corpus.source == "files":
        _check_files(manifest, fields, corpus.text_field)


def _check_files(manifest: Manifest, fields: dict[str, str], text_field: str) -> None:
    full = [part.path for part in manifest.parts if part.size]
    empty = [part.path for part in manifest.parts if not part.size]
    if not full:
        raise DataError(
            f"the corpus is empty: {len(empty)} files of 0 bytes, first {empty[0]}",
            "check corpus.paths and whatever wrote these files",
        )
    if empty:
        log(f"left out {len(empty)} files of 0 bytes, first {empty[0]}")

    def check(path: str) -> None:
        for name, fix in fields.items():
            check_field(path, name, fix, needs_fields=name != text_field, text=name == text_field)
        if format_of(path)[0] in DELIMITERS and not is_url(path) and os.path.getsize(path) <= SMALL_BYTES:
            with broken_files(path):
                check_quotes(path, Reading())

    with ThreadPoolExecutor(LISTERS) as pool:  # it takes long only where a network answers
        list(pool.map(check, full))
