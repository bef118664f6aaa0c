"""The corpora that a configuration names, what identifies each, and the checks before anything starts.

The corpora are the domain's, general text, replayed text, the pool of TAPT, and the pool and target of a selection.
Stage keys hold `reading_identity`, `dedup_identity` and `Form.identity`. `check_readable` looks at the first record of
every file. `shared_with` finds general text that is also trained on.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from adapt.config import Config, CorpusConfig, ObjectiveConfig, what
from adapt.corpus.cleaning import catalogue
from adapt.corpus.decontamination import (
    check_sets,
    evaluation_manifests,  # numpy, which other plans do not need
)
from adapt.corpus.files.filesystem import is_url
from adapt.corpus.files.formats import DELIMITERS, MIB, format_of
from adapt.corpus.files.hub import check_dataset
from adapt.corpus.files.manifest import LISTERS, Manifest
from adapt.corpus.files.records import TEXT_FIX, Reading, check_field, check_quotes
from adapt.corpus.files.sources import sources_of
from adapt.corpus.files.storage import broken_files
from adapt.runner.digest import Digests
from adapt.runner.key import deciding
from adapt.support.errors import ConfigError, DataError
from adapt.support.schema import marks_of
from adapt.terminal.console import log

FILES: dict[str, Any] = {"source": "files", "sources": [], "dataset": None, "streaming": False}
"""What a second corpus, which is always given as paths, does not take from the first."""
MIXED_IN: dict[str, Any] = {**FILES, "deduplicate": "none"}
"""The same of one that is trained on beside it."""


def general_corpus(config: Config) -> CorpusConfig:
    """All of it is held out: it is measured on, unless some of it is trained on (`Corpora.general`)."""
    evaluation = config.evaluation
    return replace(
        config.corpus,
        **FILES,
        paths=evaluation.general_paths,
        text_field=evaluation.general_text_field,
        decontaminate=[],
        heldout_fraction=1.0,
    )


def replayed_corpus(config: Config) -> CorpusConfig:
    """It is trained on, but for the share that is held out of every corpus: a domain may hold the same text."""
    mixture = config.mixture
    return replace(config.corpus, **MIXED_IN, paths=mixture.replay_paths, text_field=mixture.replay_text_field)


def pooled_corpus(config: Config) -> CorpusConfig:
    """The pool of TAPT; as replayed text."""
    tapt = config.tapt
    return replace(config.corpus, **MIXED_IN, paths=tapt.pool_paths, text_field=tapt.pool_text_field)


def selection_pool(config: Config) -> CorpusConfig:
    """The pool that documents are selected of, without the texts of evaluation sets."""
    select = config.select
    return replace(config.corpus, **MIXED_IN, paths=select.pool_paths, text_field=select.pool_text_field)


def selection_target(config: Config) -> CorpusConfig:
    """Text that selected documents should resemble, read as the pool is: selections and embedders learn from it."""
    select = config.select
    return replace(config.corpus, **MIXED_IN, paths=select.target_paths, text_field=select.target_text_field)


def trained_corpora(config: Config) -> dict[str, list[tuple[str, CorpusConfig]]]:
    """What a configuration trains on besides the text of tasks: by field, each source's name for folders and corpus."""
    corpus, name = config.corpus, config.name
    corpora: dict[str, list[tuple[str, CorpusConfig]]] = {}
    if corpus.paths or corpus.sources or corpus.source != "files":
        sources = [(f"{name}-{source}" if source else name, as_corpus) for source, as_corpus in sources_of(corpus)]
        corpora["corpus.sources" if corpus.sources else "corpus.paths"] = sources
    elif config.tapt.pool_paths:
        corpora["tapt.pool_paths"] = [(f"{name}-pool", pooled_corpus(config))]
    elif config.select.pool_paths:
        corpora["select.pool_paths"] = [(f"{name}-pool", selection_pool(config))]
    if config.mixture.replay_paths:
        corpora["mixture.replay_paths"] = [(f"{name}-replay", replayed_corpus(config))]
    return corpora


@dataclass(frozen=True)
class Form:
    """The default is that of token masking."""

    marks: tuple[str, ...] = ()
    """Columns of truth values, one a token."""
    entity_field: str | None = None
    """Field of the records that holds entities."""
    tagger: str | None = None
    """`module:function` that finds entities."""
    ends: bool = False
    """Documents end with the end-of-text token, so that a causal model learns where to end."""

    @classmethod
    def of(cls, objective: ObjectiveConfig) -> "Form":
        """What an objective asks for."""
        entity_field, tagger = (objective.entity_field, objective.tagger) if objective.kind == "entity" else (None,) * 2
        return cls(marks_of(objective.kind), entity_field, tagger, objective.kind == "causal")

    def identity(self) -> dict[str, Any]:
        """The fields that differ from the default. So objectives with the same needs share a prepared corpus."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}


PLAIN = Form()
"""Tokens alone."""


_LATER = ("heldout_fraction", "deduplicate", "near_ngram", "near_permutations", "near_threshold")
_EVALUATION = ("decontaminate_ngram", "decontaminate_overlap")


def reading_identity(corpus: CorpusConfig, digests: Digests) -> dict[str, Any]:
    """The settings of reading and cleaning; evaluation sets by the content of their files.

    Raises:
        ConfigError: `corpus.cleaning` or `corpus.decontaminate` is wrong.
        DataError: a file of an evaluation set is missing.
    """
    settings = {name: value for name, value in what(corpus).items() if name not in (*_LATER, *_EVALUATION, "cleaning")}
    settings["id_field"] = None  # a field of earlier versions: corpora that they prepared keep their keys
    settings["cleaning"] = catalogue.identity(corpus.cleaning)
    if corpus.decontaminate:
        fields = {
            evaluation.name: {"text_field": evaluation.text_field, "pair_field": evaluation.pair_field}
            for evaluation in corpus.decontaminate
        }
        settings["decontaminate"] = {
            **{name: getattr(corpus, name) for name in _EVALUATION},
            "sets": {
                name: {"digest": manifest.digest, **fields[name]}
                for name, manifest in evaluation_manifests(corpus, digests).items()
            },
        }
    return settings


def dedup_identity(corpus: CorpusConfig) -> dict[str, Any]:
    """What counts as a duplicate."""
    if corpus.deduplicate == "exact":
        return {"deduplicate": "exact"}
    return {**{name: getattr(corpus, name) for name in _LATER[1:]}, **deciding("rensa")}


GENERAL = "evaluation.general_paths"
FEWEST_DOCUMENTS = 2
"""Measured documents that a text needs for its loss to be reported."""


def shared_with(general: Manifest, trained: Mapping[str, Sequence[Manifest]], heldout_fraction: float) -> str | None:
    """The field that reads a file of the general text too, wherever its copy lies; None where no field does.

    Args:
        general: the files that are measured on.
        trained: for each field that names text to train on, the files of its sources.
        heldout_fraction: what is left to measure of files that are trained on.

    Raises:
        ConfigError: all general text is the domain, or nothing of it would be left.
    """
    measured = _contents([general])
    field = next((field for field, sources in trained.items() if measured & _contents(sources)), None)
    if field is None:
        return None
    if field.startswith("corpus.") and measured == _contents(trained[field]):
        raise ConfigError(
            f"{GENERAL} and {field} read the same text, so the loss on general text would be that of the domain",
            f"give {GENERAL} text that is not of the domain, or remove it",
        )
    if not heldout_fraction:
        raise ConfigError(
            f"{GENERAL} and {field} read the same text, and corpus.heldout_fraction is 0, so all of it is trained on"
            " and none is left to measure",
            f"set corpus.heldout_fraction, or give {GENERAL} text of its own",
        )
    return field


def check_heldout(heldout: int, trained: int | None, field: str, folder: Path) -> None:
    """Refuses general text of which nothing is held out, once it is prepared.

    Args:
        heldout: documents.
        trained: documents.
        field: that trains on them.
        folder: of the prepared text.

    Raises:
        DataError: names the field that trains on the rest of it.
    """
    if not heldout:
        from adapt.corpus.heldout import share_holding  # pyarrow, which plans do not need

        found = share_holding([folder], 1)
        more = f" to {found.share:g}" if found else ""
        raise DataError(
            f"{GENERAL} and {field} read the same text, and none of its {trained} documents falls"
            " into the share that is held out, so none is left to measure",
            f"raise corpus.heldout_fraction{more}, or give {GENERAL} text of its own",
        )


def warn_of_little(documents: int, text: str, fields: str) -> None:
    """Says that a text of which all is measured has too few documents for its loss to be reported.

    Args:
        documents: how many it has.
        text: what it is called.
        fields: what names its files.
    """
    if documents < FEWEST_DOCUMENTS:
        log(f"{text}: its loss will not be measured, because it has {documents} document; add text to {fields}")


def _contents(manifests: Sequence[Manifest]) -> set[str]:
    return {part.digest for manifest in manifests for part in manifest.parts}


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
