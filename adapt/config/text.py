"""The text: corpora, how they are mixed, and what is held out of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from adapt.config.fields import (
    Fraction,
    NonNegativeFloat,
    OpenFraction,
    PositiveFloat,
    PositiveInt,
    ProperFraction,
    how,
    how_list,
)


@dataclass(frozen=True)
class EvaluationSet:
    """Texts that a model is to be judged on later, and must not have seen."""

    name: str
    """A short name, for reports."""
    paths: str | list[str]
    """Files, folders or globs, as corpus.paths."""
    text_field: str = "text"
    """Field that holds the text, or the list of its words (task.kind `tokens`)."""
    pair_field: str | None = None
    """Field that holds a second text, as task.pair_field."""


@dataclass(frozen=True)
class SourceConfig:
    """One of several sources of a corpus."""

    name: str
    """A short name, for folders and reports."""
    source: Literal["files", "docstrings", "dataset"] = "files"
    """Like corpus.source."""
    paths: str | list[str] = how_list()
    """Like corpus.paths."""
    dataset: str | None = how(None)
    """Like corpus.dataset."""
    dataset_config: str | None = how(None)
    """Like corpus.dataset_config."""
    dataset_split: str = how("train")
    """Like corpus.dataset_split."""
    dataset_revision: str | None = how(None)
    """Like corpus.dataset_revision."""
    text_field: str | None = None
    """Like corpus.text_field; null inherits it."""
    text_unit: Literal["line", "paragraph"] | None = None
    """Like corpus.text_unit; null inherits it."""
    id_field: str | None = None
    """Like corpus.id_field; null inherits it."""
    decontaminate: list[EvaluationSet] = how_list()
    """Evaluation sets for this source alone, besides those of corpus.decontaminate."""
    weight: NonNegativeFloat | None = None
    """Share of this source in training, relative to the other sources' weights."""


@dataclass(frozen=True)
class CorpusConfig:
    """The unlabelled domain text."""

    source: Literal["files", "docstrings", "dataset"] = "files"
    """`files` reads corpus.paths, `dataset` the `datasets` repository corpus.dataset, `docstrings` those of the
    installed Python packages (a demo corpus)."""
    paths: str | list[str] = how_list()
    """Files, folders or globs, here or at s3://, gs://, hf://, https:// and the like: .jsonl, .json, .csv, .tsv, .txt,
    also .gz, .zst, .xz or .bz2; .parquet, .arrow. One path or a list."""
    dataset: str | None = how(None)
    """`dataset`: id on the Hugging Face Hub, or a folder that `datasets` can load; it is streamed."""
    dataset_config: str | None = how(None)
    """`dataset`: name of its configuration, where it has several."""
    dataset_split: str = how("train")
    """`dataset`: its split."""
    dataset_revision: str | None = how(None)
    """`dataset`: branch, tag or commit; null is its main branch, at the commit it has when the job starts."""
    sources: list[SourceConfig] = how_list()
    """Several sources in place of the one above: a list of {name, weight, paths, …} with the same fields."""
    text_field: str = "text"
    """Field (jsonl) or column (csv, parquet, Arrow) that holds the text."""
    text_unit: Literal["line", "paragraph"] = "line"
    """In plain text, what one document is: a line, or the lines up to a blank one."""
    id_field: str | None = None
    """Field that holds a document's id. Ids that come twice are counted and reported; their documents are kept."""
    max_record_mib: PositiveInt = 32
    """Longer records (lines, paragraphs, cells) are passed over and counted as unreadable [MiB]."""
    cleaning: list[str | dict[str, Any]] = field(
        default_factory=lambda: [{"length": {"min_characters": 20}}, {"letters": {"min_fraction": 0.5}}]
    )
    """Blocks that documents pass in this order, each `name` or `name: {option: value}`: fix_unicode, language, length,
    letters, symbols, repetition, boilerplate, pii, or your own, `package.module:Class`. Their options:
    `adapt/corpus/cleaning/`."""
    write_rejects: bool = how(False)
    """Write every dropped document aside with the reason, as rejects/*.jsonl.gz in the prepared corpus's folder."""
    decontaminate: list[EvaluationSet] = how_list()
    """Evaluation sets whose texts must not stand in the corpus, a list of {name, paths, text_field, pair_field}.
    Documents that hold one of their texts, or much of it, as they come or as cleaning leaves them, are dropped and
    counted by set. A file in which more than max_bad_fraction of the records cannot be read is refused."""
    decontaminate_ngram: PositiveInt = 13
    """Length of the runs of words by which evaluation texts are found [words]."""
    decontaminate_overlap: OpenFraction = 0.5
    """Share of an evaluation text's runs of words, or of the document's own, that both hold from which on the document
    is dropped."""
    deduplicate: Literal["none", "exact", "near"] = "none"
    """Keep one document of those that are alike, over all files and sources (jobs/sequence.py: of a domain): `exact` of
    those with the same text up to case, spaces and Unicode form, `near` also of those that share most of their runs of
    words (MinHash LSH)."""
    near_ngram: PositiveInt = 5
    """`near`: length of the runs of words that are compared [words]."""
    near_permutations: PositiveInt = 256
    """`near`: numbers in the MinHash signature of a document."""
    near_threshold: OpenFraction = 0.8
    """`near`: Jaccard similarity of two documents' runs of words from which on they are duplicates."""
    max_bad_fraction: Fraction = how(0.01)
    """Largest share of unreadable records (malformed JSON, no text, invalid UTF-8) before the job fails."""
    heldout_fraction: Fraction = 0.01
    """Share of documents held out of training for evaluation, chosen by a hash of their text without case and spaces;
    the same documents of replayed text and of pools are not trained on."""
    streaming: bool = False
    """Read, clean and tokenize while training, in one pass, instead of before: for corpora too large to prepare.
    The length of the run must be given in steps or tokens; it ends earlier where the corpus does."""


@dataclass(frozen=True)
class MixtureConfig:
    """How several sources share a training run."""

    order: Literal["interleaved", "sequential"] = "interleaved"
    """`interleaved`: rows of all sources mixed all along; `sequential`: one source after another, as listed."""
    temperature: PositiveFloat = 1.0
    """Where sources have no weights, they have shares in proportion to rows^(1/temperature): at 1 every row comes once
    an epoch; higher values even out large and small sources (5 is usual for languages, arXiv 1907.05019)."""
    exhausted: Literal["repeat", "stop"] = "repeat"
    """When a source has given all its rows: it starts again, or the run ends."""
    replay_paths: str | list[str] = how_list()
    """General text that is mixed into the whole run against forgetting: files, folders or globs as corpus.paths."""
    replay_text_field: str = how("text")
    """Field that holds the text of the replayed corpus."""
    replay_fraction: ProperFraction = 0.1
    """Share of the run's rows that are replayed, where replay_paths is given."""
