"""Lists the corpora of a configuration, identifies them in stage keys, and checks their files before a job starts.

The corpora are the domain's corpus, general text, replayed text, the pool of TAPT, and the pool and target of a
selection.
The results of `reading_identity`, `dedup_identity` and `Form.identity` enter stage keys. `check_readable` reads the
first record of every file. `shared_with` finds general text that is also trained on.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from adapt.config import Config, CorpusConfig, ObjectiveConfig, what
from adapt.corpus import decontamination
from adapt.corpus.cleaning import cleaning_blocks
from adapt.corpus.files import filesystem, hub, records, storage
from adapt.corpus.files.formats import DELIMITERS, MIB, format_of
from adapt.corpus.files.manifest import LISTERS, Manifest, sources_of
from adapt.corpus.heldout import share_holding  # loads pyarrow, which commands that only print a plan do not need
from adapt.runner.digest import Digests
from adapt.runner.stage import deciding
from adapt.support.errors import ConfigError, DataError
from adapt.support.schema import marks_of
from adapt.terminal.console import log

FILES: dict[str, Any] = {"source": "files", "sources": [], "dataset": None, "streaming": False}
"""Field values that replace those of section `corpus` for other corpora, such as general text. Other corpora are always
read from paths."""
MIXED_IN: dict[str, Any] = {**FILES, "deduplicate": "none"}
"""Field values that replace those of section `corpus` for replayed text, and for the pools and targets of selections.
Duplicates within these corpora are kept."""


def general_corpus(config: Config) -> CorpusConfig:
    """Returns the corpus of general text. All its documents are held out, because forgetting is measured on them.

    If some of the text is also trained on, the caller (`Corpora.general`) lowers the held-out share.
    """
    evaluation = config.evaluation
    return replace(
        config.corpus,
        **FILES,
        paths=evaluation.general_paths,
        text_field=evaluation.general_text_field,
        decontaminate=[],
        heldout_fraction=1.0,
    )


MixedText = Literal["mixture.replay", "tapt.pool", "select.pool", "select.target"]
"""Beginning of the names of the fields `..._paths` and `..._text_field` of a text that is read besides the corpus:
replayed text, TAPT's pool of unlabelled text, the pool from which documents are selected, and the target texts that
selected documents should resemble."""


def mixed_corpus(config: Config, text: MixedText) -> CorpusConfig:
    """Returns the corpus of a text that is read besides the corpus of section `corpus`.

    It has the settings of section `corpus`: the same held-out share, because it may contain the same texts, and the
    same evaluation sets, whose texts are dropped.
    """
    section, _, name = text.partition(".")
    values = vars(getattr(config, section))
    return replace(config.corpus, **MIXED_IN, paths=values[f"{name}_paths"], text_field=values[f"{name}_text_field"])


def trained_corpora(config: Config) -> dict[str, list[tuple[str, CorpusConfig]]]:
    """Returns the corpora that a configuration trains on, except the texts of tasks.

    Returns:
        The sources of each corpus, keyed by the field that names the corpus, such as `corpus.paths`. Each source is a
        pair of its name, which is also used for folders, and its configuration.
    """
    corpus, name = config.corpus, config.name
    corpora: dict[str, list[tuple[str, CorpusConfig]]] = {}
    if corpus.paths or corpus.sources or corpus.source != "files":
        sources = [(f"{name}-{source}" if source else name, as_corpus) for source, as_corpus in sources_of(corpus)]
        corpora["corpus.sources" if corpus.sources else "corpus.paths"] = sources
    elif config.tapt.pool_paths:
        corpora["tapt.pool_paths"] = [(f"{name}-pool", mixed_corpus(config, "tapt.pool"))]
    elif config.select.pool_paths:
        corpora["select.pool_paths"] = [(f"{name}-pool", mixed_corpus(config, "select.pool"))]
    if config.mixture.replay_paths:
        corpora["mixture.replay_paths"] = [(f"{name}-replay", mixed_corpus(config, "mixture.replay"))]
    return corpora


@dataclass(frozen=True)
class Form:
    """The data that an objective needs besides tokens, such as the starts of words.

    By default, an objective needs no other data than tokens.
    """

    marks: tuple[str, ...] = ()
    """Names of the boolean columns that the objective needs, which have one value per token."""
    entity_field: str | None = None
    """Field of the records that holds entities; None if no entities are read."""
    tagger: str | None = None
    """Name of the tagger that finds entities, as `module:Class`; None if no tagger is used."""
    ends: bool = False
    """Whether documents end with the end-of-text token, from which a causal model learns where a text ends."""
    sentences: bool = False
    """Whether documents are split into sentences, which are then stored as separate documents."""

    @classmethod
    def of(cls, *objectives: ObjectiveConfig, sentences: bool = False) -> "Form":
        """Returns the combined requirements of all objectives of a training run, which has one objective per phase.

        Raises:
            ConfigError: two phases find entities in different ways (another field or tagger).
        """
        marks = tuple(dict.fromkeys(mark for objective in objectives for mark in marks_of(objective.kind)))
        entities = {(each.entity_field, each.tagger) for each in objectives if each.kind == "entity"} or {(None, None)}
        if len(entities) > 1:
            raise ConfigError(
                "training.phases: two phases differ in objective.entity_field or objective.tagger",
                "set the same objective.entity_field and objective.tagger in all phases",
            )
        ends = any(objective.kind == "causal" for objective in objectives)
        return cls(marks, *entities.pop(), ends, sentences)

    def identity(self) -> dict[str, Any]:
        """Returns the fields that differ from their defaults, as a part of stage keys.

        Objectives with equal fields share a prepared corpus.
        """
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}


PLAIN = Form()
"""Form of a prepared corpus that has only tokens, without marks such as starts of words."""


_LATER = ("heldout_fraction", "deduplicate", "near_ngram", "near_permutations", "near_threshold")
_EVALUATION = ("decontaminate_ngram", "decontaminate_overlap")
_DOCUMENTS = ("documents", "max_document_mib", "max_document_pages", "max_document_seconds")
"""Fields that are part of stage keys only if they differ from their defaults. Earlier versions did not have these
fields, and the keys of their results must stay valid."""


def reading_identity(corpus: CorpusConfig, digests: Digests) -> dict[str, Any]:
    """Returns the settings for reading and cleaning a corpus, as a part of stage keys.

    For each evaluation set, the settings contain the digest of its files and the names of its fields.

    Raises:
        ConfigError: `corpus.cleaning` or `corpus.decontaminate` is wrong.
        DataError: a file of an evaluation set is missing.
    """
    settings = {name: value for name, value in what(corpus).items() if name not in (*_LATER, *_EVALUATION, "cleaning")}
    usual = what(CorpusConfig())
    settings = {name: value for name, value in settings.items() if name not in _DOCUMENTS or value != usual[name]}
    settings["cleaning"] = cleaning_blocks.identity(corpus.cleaning)
    if corpus.decontaminate:
        fields = {
            evaluation.name: {"text_field": evaluation.text_field, "pair_field": evaluation.pair_field}
            for evaluation in corpus.decontaminate
        }
        settings["decontaminate"] = {
            **{name: getattr(corpus, name) for name in _EVALUATION},
            "sets": {
                name: {"digest": manifest.digest, **fields[name]}
                for name, manifest in decontamination.evaluation_manifests(corpus, digests).items()
            },
        }
    return settings


def dedup_identity(corpus: CorpusConfig) -> dict[str, Any]:
    """Returns the settings that decide which documents count as duplicates, as a part of stage keys."""
    if corpus.deduplicate == "exact":
        return {"deduplicate": "exact"}
    settings = what(corpus)
    return {**{name: settings[name] for name in _LATER[1:]}, **deciding("rensa")}


GENERAL = "evaluation.general_paths"
FEWEST_DOCUMENTS = 2
"""Minimum number of held-out documents for which a text's loss is reported."""


def shared_with(general: Manifest, trained: Mapping[str, Sequence[Manifest]], heldout_fraction: float) -> str | None:
    """Returns the first field that trains on a file of the general text; None if no field does.

    Two files are the same if their contents are equal.

    Args:
        general: the files of the general text.
        trained: the files of each source, keyed by the field that names the text to train on.
        heldout_fraction: share of the training text's documents that is held out.

    Raises:
        ConfigError: the general text is the text of the domain, or some of its files are also training text of which no
            document is held out.
    """
    measured = _contents([general])
    field = next((field for field, sources in trained.items() if measured & _contents(sources)), None)
    if field is None:
        return None
    if field.startswith("corpus.") and measured == _contents(trained[field]):
        raise ConfigError(
            f"{GENERAL} and {field} read the same text, so the loss on general text would be the loss on the domain's"
            " text",
            f"set {GENERAL} to text from outside the domain, or remove {GENERAL}",
        )
    if not heldout_fraction:
        raise ConfigError(
            f"{GENERAL} and {field} read the same text, and corpus.heldout_fraction is 0, so all of this text is used"
            " for training and none is held out to measure the loss",
            f"set corpus.heldout_fraction above 0, or set {GENERAL} to other text",
        )
    return field


def check_heldout(heldout: int, trained: int | None, field: str, folder: Path) -> None:
    """Checks that at least one document of prepared general text is held out.

    Raises:
        DataError: no document is held out. The message names the field that trains on the text.
    """
    if not heldout:
        found = share_holding([folder], 1)
        more = f" to {found.share:g}" if found else ""
        raise DataError(
            f"{GENERAL} and {field} read the same text, and none of its {trained} documents is in the held-out share,"
            " so there is no document to measure the loss on",
            f"raise corpus.heldout_fraction{more}, or set {GENERAL} to other text",
        )


def warn_of_little(documents: int, text: str, fields: str) -> None:
    """Logs a warning if a text has too few documents for its loss to be reported.

    The text is only used to measure losses, not to train.

    Args:
        documents: number of documents of the text.
        text: name of the text, for the message.
        fields: names of the fields that list the files of the text, for the message.
    """
    if documents < FEWEST_DOCUMENTS:
        log(
            f"{text}: the loss on this text will not be measured, because the text has {documents} of at least"
            f" {FEWEST_DOCUMENTS} required documents; add text to {fields}"
        )


def dropped_documents(kept: int, dropped: Mapping[str, int]) -> str:
    """Returns a sentence with the number of dropped documents, in total and by reason; empty if none was dropped.

    Args:
        kept: number of documents that were kept.
        dropped: number of dropped documents, keyed by reason.
    """
    number = sum(dropped.values())
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())
    return f"{number:,} of {kept + number:,} documents dropped: {reasons}" if number else ""


def _contents(manifests: Sequence[Manifest]) -> set[str]:
    return {part.digest for manifest in manifests for part in manifest.parts}


SMALL_BYTES = 16 * MIB
"""Maximum size of a csv or tsv file for which `check_readable` reads the whole file [bytes], to find rows that would be
lost inside a quoted cell."""


def check_readable(manifest: Manifest, corpus: CorpusConfig, entity_field: str | None = None) -> None:
    """Checks the first record of every file of a corpus and of its evaluation sets, before a job starts.

    Raises:
        DataError: all files are empty; a file is broken at its beginning, or has no text field or no entity field; or
            a file of an evaluation set lacks one of the set's fields.
        StorageError: a store does not answer.
    """
    decontamination.check_sets(corpus)
    fields = {corpus.text_field: records.TEXT_FIX}
    if entity_field is not None:
        fields[entity_field] = "set objective.entity_field to the field that holds the entities"
    if corpus.source == "dataset":
        for name, fix in fields.items():
            hub.check_dataset(corpus, manifest.parts[0].stamp, name, fix)
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
            records.check_field(path, name, fix, needs_fields=name != text_field, text=name == text_field)
        if format_of(path)[0] in DELIMITERS and not filesystem.is_url(path) and os.path.getsize(path) <= SMALL_BYTES:
            with storage.broken_files(path):
                records.check_quotes(path, records.Reading())

    with ThreadPoolExecutor(LISTERS) as pool:  # files are checked in parallel, because remote stores answer slowly
        list(pool.map(check, full))
