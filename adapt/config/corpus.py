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
    """Files, folders or globs, like corpus.paths."""
    text_field: str = "text"
    """Field that holds the text, or the list of its words (task.kind `tokens`)."""
    pair_field: str | None = None
    """Field that holds a second text, like task.pair_field."""


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
    packages: list[str] = how_list()
    """Like corpus.packages."""
    text_field: str | None = None
    """Like corpus.text_field; null inherits it."""
    text_unit: Literal["line", "paragraph"] | None = None
    """Like corpus.text_unit; null inherits it."""
    decontaminate: list[EvaluationSet] = how_list()
    """Evaluation sets for this source alone, besides those of corpus.decontaminate."""
    weight: NonNegativeFloat | None = None
    """Share of this source in training, relative to the other sources' weights."""


@dataclass(frozen=True)
class CorpusConfig:
    """The unlabelled domain text."""

    source: Literal["files", "docstrings", "dataset"] = "files"
    """`files` reads corpus.paths; `dataset` reads the `datasets` repository corpus.dataset; `docstrings` reads the
    docstrings of the installed Python packages (a demo corpus)."""
    paths: str | list[str] = how_list()
    """Files, folders or globs, on this machine or at s3://, gs://, hf://, https:// and the like: .jsonl, .json, .csv,
    .tsv, .txt, each also as .gz, .zst, .xz or .bz2; .parquet, .arrow. One path or a list."""
    dataset: str | None = how(None)
    """`dataset`: id on the Hugging Face Hub, or a folder that `datasets` can load; it is streamed."""
    dataset_config: str | None = how(None)
    """`dataset`: name of the dataset's configuration, where there are several."""
    dataset_split: str = how("train")
    """`dataset`: split of the dataset."""
    dataset_revision: str | None = how(None)
    """`dataset`: branch, tag or commit; null is the latest commit of the main branch when the job starts."""
    packages: list[str] = how_list()
    """`docstrings`: the installed packages whose docstrings are read; empty reads those of all packages."""
    sources: list[SourceConfig] = how_list()
    """Several sources in place of the one that the fields above describe: a list of {name, weight, paths, …} with the
    same fields."""
    text_field: str = "text"
    """Field (jsonl) or column (csv, parquet, Arrow) that holds the text."""
    text_unit: Literal["line", "paragraph"] = "line"
    """What one document of plain text is: a `line`, or a `paragraph`, the lines up to a blank one."""
    max_record_mib: PositiveInt = 32
    """Largest record (line, paragraph, cell) that is read [MiB]; larger ones are skipped and counted as unreadable."""
    cleaning: list[str | dict[str, Any]] = field(
        default_factory=lambda: [{"length": {"min_characters": 20}}, {"letters": {"min_fraction": 0.5}}]
    )
    """Cleaning blocks that documents pass in this order, each `name` or `name: {option: value}`: fix_unicode, language,
    length, letters, symbols, repetition, boilerplate, pii, or your own, `package.module:Class`. The files in
    `adapt/corpus/cleaning/` list the options."""
    write_rejects: bool = how(False)
    """Keep every dropped document with the reason, as rejects/*.jsonl.gz in the folder of the prepared corpus."""
    decontaminate: list[EvaluationSet] = how_list()
    """Evaluation sets whose texts must not be in the corpus, a list of {name, paths, text_field, pair_field}. A
    document that holds all or much of such a text, before or after cleaning, is dropped and counted for the set. An
    evaluation file is refused if more than max_bad_fraction of its records cannot be read."""
    decontaminate_ngram: PositiveInt = 13
    """Length of the n-grams by which evaluation texts are found [words]."""
    decontaminate_overlap: OpenFraction = 0.5
    """A document is dropped if it has this share of an evaluation text's n-grams, or if the evaluation text has this
    share of the document's n-grams."""
    deduplicate: Literal["none", "exact", "near"] = "none"
    """Keep only one of several duplicates, over all files and sources (dontstop sequence: within a domain). `exact`:
    documents with the same text, up to case, spaces and Unicode form, are duplicates; `near`: so are documents that
    share most of their n-grams (MinHash LSH)."""
    near_ngram: PositiveInt = 5
    """`near`: length of the n-grams that are compared [words]."""
    near_permutations: PositiveInt = 256
    """`near`: numbers in the MinHash signature of a document."""
    near_threshold: OpenFraction = 0.8
    """`near`: two documents are duplicates if the Jaccard similarity of their n-grams is at least this."""
    max_bad_fraction: Fraction = how(0.01)
    """The job fails if more than this share of the records is unreadable (malformed JSON, no text, invalid UTF-8)."""
    heldout_fraction: Fraction = 0.01
    """Share of the documents that is held out of training for evaluation, chosen by a hash of their text without case
    and spaces. The same documents are left out of replayed text and of pools."""
    streaming: bool = False
    """Read, clean and tokenize the corpus during training, in one pass, and not before: for corpora too large to
    prepare. The length of the run must be given in steps or tokens; the run ends earlier if the corpus does."""


@dataclass(frozen=True)
class MixtureConfig:
    """How several sources share a training run."""

    order: Literal["interleaved", "sequential"] = "interleaved"
    """`interleaved` mixes rows of all sources throughout the run; `sequential` takes one source after another, as
    listed."""
    temperature: PositiveFloat = 1.0
    """Sources without weights have shares in proportion to rows^(1/temperature): at 1 every row comes once in an epoch;
    higher values even out large and small sources (5 is usual for languages, arXiv 1907.05019)."""
    exhausted: Literal["repeat", "stop"] = "repeat"
    """When a source has given all its rows, `repeat` starts the source again, and `stop` ends the run."""
    replay_paths: str | list[str] = how_list()
    """General text that is mixed into the whole run against forgetting: files, folders or globs like corpus.paths."""
    replay_text_field: str = how("text")
    """Field that holds the text of the replayed corpus."""
    replay_fraction: ProperFraction = 0.1
    """Share of the run's rows that are replayed, where replay_paths is given."""
    replay_last: ProperFraction | None = None
    """That share at the end of the run, to which it grows or falls in a straight line; null keeps replay_fraction."""
