"""Defines the configuration of the text: corpora, their mixture, held-out documents, and generated text.

A model can generate text that is replayed in place of general text, or rewrite documents of the domain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from adapt.config.fields import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    OpenFraction,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    ProperFraction,
    how,
    how_list,
)


@dataclass(frozen=True)
class EvaluationSet:
    """An evaluation set, whose texts must not occur in the training text."""

    name: str
    """Short name, shown in reports."""
    paths: str | list[str]
    """Files, folders or globs, as in corpus.paths."""
    text_field: str = "text"
    """Field that holds the text, or the list of its words (for task.kind `tokens`)."""
    pair_field: str | None = None
    """Field that holds a second text, as in task.pair_field."""


@dataclass(frozen=True)
class SourceConfig:
    """One of several sources of the corpus."""

    name: str
    """Short name, used for folders and reports."""
    source: Literal["files", "docstrings", "dataset"] = "files"
    """Kind of this source, as in corpus.source."""
    paths: str | list[str] = how_list()
    """Files, folders or globs of this source, as in corpus.paths."""
    dataset: str | None = how(None)
    """Dataset of this source, as in corpus.dataset."""
    dataset_config: str | None = how(None)
    """Configuration of this source's dataset, as in corpus.dataset_config."""
    dataset_split: str = how("train")
    """Split of this source's dataset, as in corpus.dataset_split."""
    dataset_revision: str | None = how(None)
    """Revision of this source's dataset, as in corpus.dataset_revision."""
    packages: list[str] = how_list()
    """Packages of this source, as in corpus.packages."""
    text_field: str | None = None
    """Field of this source that holds the text; null uses the value of corpus.text_field."""
    text_unit: Literal["line", "paragraph"] | None = None
    """What counts as one document in plain text files of this source; null uses the value of corpus.text_unit."""
    decontaminate: list[EvaluationSet] = how_list()
    """Evaluation sets whose texts are removed from this source only, in addition to those of corpus.decontaminate."""
    weight: NonNegativeFloat | None = None
    """Sampling weight of this source in training, relative to the weights of the other sources."""


@dataclass(frozen=True)
class CorpusConfig:
    """The unlabelled domain text."""

    earlier: ClassVar[Mapping[str, Any]] = {"id_field": None, "near_ngram": 5, "near_permutations": 256}
    source: Literal["files", "docstrings", "dataset"] = "files"
    """`files` reads corpus.paths; `dataset` reads the `datasets` repository corpus.dataset; `docstrings` reads the
    docstrings of the installed Python packages (a demo corpus)."""
    paths: str | list[str] = how_list()
    """Files, folders or globs, local or remote (s3://, gs://, hf://, https:// and others), one path or a list. Formats:
    .jsonl, .json, .ndjson, .csv, .tsv and .txt, each also compressed as .gz, .zst, .xz or .bz2; .parquet; .arrow. With
    `pip install 'dontstop[documents]'` also the main text of web pages, PDF, Word and other files: .html, .htm, .pdf,
    .docx, .epub, .md, .rst, .tex and .warc.gz."""
    dataset: str | None = how(None)
    """`dataset`: id of a dataset on the Hugging Face Hub, or a folder that `datasets` can load. The dataset is
    streamed."""
    dataset_config: str | None = how(None)
    """`dataset`: name of the dataset's configuration, needed if the dataset has several."""
    dataset_split: str = how("train")
    """`dataset`: split of the dataset."""
    dataset_revision: str | None = how(None)
    """`dataset`: branch, tag or commit; null uses the latest commit of the main branch at the start of the job."""
    packages: list[str] = how_list()
    """`docstrings`: installed packages whose docstrings are read; an empty list reads all packages."""
    sources: list[SourceConfig] = how_list()
    """Several sources instead of the single source that the fields above describe: a list of {name, weight, paths, …}
    with the same fields."""
    text_field: str = "text"
    """Field (jsonl) or column (csv, parquet, Arrow) that holds the text."""
    text_unit: Literal["line", "paragraph"] = "line"
    """What counts as one document in plain text files: each `line`, or each `paragraph` (lines separated by blank
    lines)."""
    documents: Literal["file", "page", "heading"] = "file"
    """For formats such as HTML, PDF and EPUB: what becomes one document of the corpus. `file`: the whole file. `page`:
    each page of a PDF file or chapter of an EPUB file. `heading`: the text under each heading (all formats but PDF). A
    file without pages or headings is not divided."""
    max_document_mib: PositiveInt = 128
    """Maximum size of a document [MiB]. The limit applies to its file, to the unpacked content of the file, and to the
    extracted text. Larger documents are skipped and counted as unreadable."""
    max_document_pages: PositiveInt = 5000
    """Maximum number of pages in a PDF file, or of chapters in an EPUB file. Longer documents are skipped and counted
    as unreadable."""
    max_document_seconds: PositiveInt = 60
    """Maximum CPU time for reading one document [s]. Slower documents are skipped and counted as unreadable."""
    max_record_mib: PositiveInt = 32
    """Maximum size of a record (line, paragraph or cell) [MiB]; larger records are skipped and counted as
    unreadable."""
    cleaning: list[str | dict[str, Any]] = field(
        default_factory=lambda: [{"length": {"min_characters": 20}}, {"letters": {"min_fraction": 0.5}}]
    )
    """Cleaning steps, applied to each document in this order. Each is `name` or `name: {option: value}`; names are
    fix_unicode, language, length, letters, symbols, repetition, boilerplate, pii, or your own `package.module:Class`.
    The reference page "Cleaning blocks" explains them and their options. A list replaces the default steps. The steps
    also clean general text, replayed text and pools, so runs with different steps measure forgetting on different
    text."""
    write_rejects: bool = how(False)
    """Write every dropped document, with the reason, to rejects/*.jsonl.gz in the folder of the prepared corpus."""
    decontaminate: list[EvaluationSet] = how_list()
    """Evaluation sets whose texts must not occur in the corpus: a list of {name, paths, text_field, pair_field}. A
    document that contains all or much of such a text, before or after cleaning, is dropped and counted for that set. An
    evaluation file with more than max_bad_fraction of unreadable records is an error."""
    decontaminate_ngram: PositiveInt = 13
    """Length of the n-grams that detect evaluation texts in documents [words]."""
    decontaminate_overlap: OpenFraction = 0.5
    """A document is dropped if it contains this share of an evaluation text's n-grams, or if the evaluation text
    contains this share of the document's n-grams."""
    deduplicate: Literal["none", "exact", "near"] = "none"
    """Keep only one copy of duplicate documents, over all files and sources (in dontstop sequence: within a domain).
    `exact` removes documents with the same text, ignoring case, spaces and Unicode form; `near` also removes documents
    that share most of their runs of 5 words (MinHash LSH with 256 permutations)."""
    near_threshold: OpenFraction = 0.8
    """`near`: two documents are duplicates if the Jaccard similarity of their runs of words is at least this value."""
    max_bad_fraction: Fraction = how(0.01)
    """The job fails if more than this share of the records is unreadable (malformed JSON, no text, invalid UTF-8, a
    document that is encrypted, scanned or broken)."""
    heldout_fraction: Fraction = 0.01
    """Share of the documents that is held out of training for evaluation, selected by a hash of their text that ignores
    case and spaces. The same documents are also excluded from replayed text and pools."""
    streaming: bool = False
    """Read, clean and tokenize the corpus during training, in a single pass, instead of preparing it first. Use it for
    corpora that are too large to prepare. Set the length of the run in steps or tokens; the run ends earlier if the
    corpus is exhausted."""


@dataclass(frozen=True)
class MixtureConfig:
    """Mixture of the corpus's sources and of replayed text in a training run."""

    earlier: ClassVar[Mapping[str, Any]] = {"exhausted": "repeat"}
    order: Literal["interleaved", "sequential"] = "interleaved"
    """`interleaved` mixes rows (sequences of tokens) of all sources throughout the run; `sequential` trains on one
    source after another, in the order of the list."""
    temperature: PositiveFloat = 1.0
    """Sources without weights are sampled in proportion to rows^(1/temperature). At 1, every row is seen once per
    epoch; higher values balance large and small sources (5 is usual for languages, arXiv 1907.05019)."""
    replay_kind: Literal["files", "self", "gibbs", "decoder"] = how("files")
    """Where general text comes from. `files`: replay_paths. `self`: the model, which must be a decoder, generates the
    text before training (arXiv 2605.26097). For encoders: `gibbs` starts from random text and redraws masked positions
    (arXiv 1902.04094), and `decoder` generates with the model generate.generator. Section `generate` has the
    settings."""
    replay_paths: str | list[str] = how_list()
    """General text mixed into the whole run to reduce forgetting: files, folders or globs, as in corpus.paths."""
    replay_text_field: str = how("text")
    """Field that holds the text of the replayed corpus."""
    replay_fraction: ProperFraction = 0.1
    """Share of the run's rows that are replayed text; only used if replay_paths or another replay_kind is set."""
    replay_last: ProperFraction | None = None
    """Share of replayed rows at the end of the run. The share changes linearly from replay_fraction to this value; null
    keeps replay_fraction throughout."""
    rephrased_fraction: OpenFraction | None = None
    """Share of the domain's rows that are rewritten documents (synthesize.generator). With null, all rows of original
    and rewritten documents are used equally often. arXiv 2401.16380 mixes equal amounts (0.5)."""

    @property
    def replays(self) -> bool:
        """Returns whether general text, from files or generated, is replayed."""
        return bool(self.replay_paths) or self.replay_kind != "files"


@dataclass(frozen=True)
class GenerateConfig:
    """Text that a model generates, to be replayed in place of general text (mixture.replay_kind)."""

    earlier: ClassVar[Mapping[str, Any]] = {"masked_fraction": 0.15}
    tokens: PositiveInt = 1_000_000
    """Number of tokens to generate, before filters drop some of the texts."""
    generator: str | None = how(None)
    """mixture.replay_kind `decoder`: folder or Hugging Face id of the decoder that generates the text; in a chain file
    also the name of a stage."""
    prompts: str | list[str] = how_list()
    """Texts whose first tokens are the prompts of generated texts: paths as in corpus.paths. With an empty list,
    generation begins at the start token, as in arXiv 2605.26097. Not for `gibbs`."""
    prompt_field: str = "text"
    """Field that holds the text of the prompts."""
    prompt_tokens: PositiveInt = 16
    """Maximum number of tokens in a prompt. The generated text contains its prompt."""
    temperatures: list[PositiveFloat] = field(default_factory=lambda: [0.7, 1.0, 1.3])
    """Temperatures, used in turn for successive texts: logits are divided by the temperature before a token is drawn.
    Higher values give more varied and less coherent text. arXiv 2605.26097 also uses several temperatures; the default
    values are ours."""
    top_p: PositiveFraction = 1.0
    """Each token is drawn from the most probable tokens that together have this probability (nucleus sampling, arXiv
    1904.09751). 1 draws from all tokens."""
    min_length: PositiveInt = 16
    """Minimum number of tokens in a text; the end-of-text token is not sampled before this length. `gibbs`: the length
    of each text is drawn uniformly between min_length and max_length."""
    max_length: PositiveInt = 256
    """Maximum number of tokens in a text, including its prompt. It must be less than the model's longest input."""
    sweeps: PositiveInt = 10
    """`gibbs`: number of times that every position of a text is resampled. 15% of the positions are masked and
    resampled together."""
    cleaning: list[str | dict[str, Any]] | None = None
    """Cleaning steps that filter the generated text, as in corpus.cleaning. null uses the steps of
    corpus.cleaning followed by `repetition`. Add `language` to keep only some languages."""
    seed: NonNegativeInt = 0
    """Seed of the generated text. Training runs that differ only in the job's `seed` share the generated text."""
    micro_batch: PositiveInt = how(32)
    """Number of texts that a device generates at the same time. Lower it if memory is short."""


@dataclass(frozen=True)
class SynthesizeConfig:
    """Rewrites domain documents, for example as questions and answers, to train on both versions (dontstop dapt)."""

    generator: str | None = how(None)
    """Folder or Hugging Face id of the decoder that rewrites documents, usually a large instruct model. With null, no
    document is rewritten."""
    formats: list[str] = field(default_factory=lambda: ["question_answer", "table", "summary", "tutorial"])
    """Formats in which every document is rewritten: names from the file `templates`. A format with `pairs: true`, such
    as `question`, adds no training text. It writes pairs for retrieval.pairs to pairs.jsonl in the folder of the stage
    `filter`. If all formats write pairs, the model is trained on the original documents only."""
    templates: str | None = how(None)
    """YAML file with the prompt of each format, {NAME: {prompt: …, pairs: false}}, where `{document}` stands for the
    document. null uses the templates of dontstop (adapt/generate/templates.yaml)."""
    share: PositiveFraction = 1.0
    """Share of the domain's training documents that are rewritten, chosen by a hash of their text."""
    document_tokens: PositiveInt = 512
    """Longer documents are truncated to this number of the generator's tokens."""
    temperatures: list[PositiveFloat] = field(default_factory=lambda: [0.7])
    """Temperatures, as in generate.temperatures."""
    top_p: PositiveFraction = 0.9
    """Total probability of the tokens to draw from, as in generate.top_p."""
    min_length: PositiveInt = 16
    """Minimum number of tokens in a rewritten document."""
    max_length: PositiveInt = 512
    """Maximum number of tokens in a rewritten document."""
    cleaning: list[str | dict[str, Any]] | None = None
    """Cleaning steps that filter the rewritten documents, as in generate.cleaning."""
    seed: NonNegativeInt = 0
    """Seed of the rewritten documents, as in generate.seed."""
    micro_batch: PositiveInt = how(32)
    """Number of documents that a device rewrites at the same time."""
