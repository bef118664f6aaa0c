"""Defines the configuration of labelled tasks, TAPT, document selection, fine-tuning, and standard evaluations.

The standard evaluations are tasks of lm-evaluation-harness and of MTEB.
"""

from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal

from adapt.config.fields import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ProperFraction,
    how,
    how_list,
)


@dataclass(frozen=True)
class TaskConfig:
    """A labelled task: its files, fields, kind and metric."""

    name: str = how("task")
    """Short name, used for folders and reports."""
    train: str | list[str] = how_list()
    """Labelled examples to learn from: files as in corpus.paths."""
    dev: str | list[str] = how_list()
    """Labelled examples on which the best epoch is chosen."""
    test: str | list[str] = how_list()
    """Labelled examples for the final scores, used only once."""
    kind: Literal["single_label", "multi_label", "tokens"] = "single_label"
    """`single_label`: label_field holds one label; `multi_label`: label_field holds a list of labels, which may be
    empty; `tokens`: text_field holds a list of words, and label_field a list with the label of each word (B-X, I-X,
    O)."""
    text_field: str = "text"
    """Field that holds the text."""
    pair_field: str | None = None
    """Field that holds a second text, which follows the first: an aspect, a hypothesis or an answer."""
    label_field: str = "label"
    """Field that holds the label or labels (strings or integers)."""
    id_field: str | None = None
    """Field that holds an example's id; null numbers the examples. Ids must be unique."""
    domain: str | None = how(None)
    """dontstop sequence: name of the source (in corpus.sources) that the task belongs to; null means the source
    with the task's name."""
    metric: Literal["macro_f1", "micro_f1", "accuracy", "entity_f1"] | None = None
    """Score by which models are compared; null is macro_f1, or entity_f1 for `tokens`. Don't Stop Pretraining uses
    micro_f1 for ChemProt."""
    max_bad_fraction: Fraction = how(0.01)
    """The job fails if more than this share of the examples is unusable (no text, no label, malformed)."""


@dataclass(frozen=True)
class TaptConfig:
    """Task-adaptive pre-training: trains on the text of a task's train split, without its labels."""

    batch_examples: PositiveInt | None = 256
    """Average number of examples per optimizer step; training.global_batch_size is derived from it. null uses
    training.global_batch_size unchanged."""
    transductive: bool = False
    """Also train on the text of the dev and test splits. Scores of such models are marked in every report."""
    pool_paths: str | list[str] = how_list()
    """Pool of further unlabelled text, similar to the task's text and trained on together with it (Curated-TAPT): paths
    as in corpus.paths. Documents that contain dev or test text are removed."""
    pool_text_field: str = "text"
    """Field that holds the text of the pool."""


@dataclass(frozen=True)
class SelectConfig:
    """Selection of documents from a pool: for dontstop select, for TAPT, or for DAPT instead of a corpus."""

    kind: str | list[Any] = "random"
    """How documents are selected: `random`, `dsir`, `classifier`, `knn`, `tsds`, `semdedup`, `perplexity`, or your own
    selection, `package.module:Class` (docs/guide/selection.md). Options come from the section with the selection's
    name. A list narrows the pool step by step; each entry is `name` or `name: {option: value}`, and options in the list
    override those of the section."""
    pool_paths: str | list[str] = how_list()
    """The pool: paths as in corpus.paths. Documents that contain dev or test text of the tasks, or text of
    corpus.decontaminate, are removed first."""
    pool_text_field: str = "text"
    """Field that holds the text of the pool."""
    target_paths: str | list[str] = how_list()
    """Text that the selected documents should resemble: paths as in corpus.paths. An empty list uses the text of the
    tasks' train splits."""
    target_text_field: str = "text"
    """Field that holds the text of the target."""
    per_example: PositiveInt | None = None
    """Budget: number of documents per target text. Set exactly one of per_example, documents and tokens."""
    documents: PositiveInt | None = None
    """Budget: number of documents."""
    tokens: PositiveInt | None = None
    """Budget: total number of tokens in the selected documents. The last document may exceed this number."""
    keep: PositiveFloat = 10.0
    """In a list of selections, every step except the last keeps this many times the budget."""
    embedder: str = "tfidf"
    """Embedder whose vectors `knn`, `tsds` and `semdedup` compare: `tfidf`, `static`, `transformer`, `vampire`, or your
    own embedder, `package.module:Class` (docs/guide/selection.md). Options come from the section with the embedder's
    name."""
    index: Literal["auto", "flat", "ivf", "ivf_pq", "hnsw"] = "auto"
    """Index for finding nearest vectors: `flat` compares a vector with all others, the other kinds compare it with only
    some; `auto` is `flat` up to a million documents (docs/guide/selection.md)."""
    min_recall: Fraction = 0.95
    """Share of the true nearest documents that the index must find, measured on 200 target texts. The search is widened
    until the index finds this share; if the widest search does not find it, the job fails."""
    measure_loss: bool = True
    """dontstop select: also measure the model's held-out loss on the selected documents, on random documents and on the
    target (20,000 tokens of each), on the CPUs of this machine."""


@dataclass(frozen=True)
class FinetuneConfig:
    """Fine-tuning of a model on a task. Defaults are from the paper Don't Stop Pretraining."""

    mode: Literal["fine_tune", "feature_extraction", "linear_probe", "lora"] = "fine_tune"
    """`fine_tune` trains all weights; `lora` trains low-rank adapters (arXiv 2106.09685). Two modes do not
    change the encoder: `feature_extraction` (logistic regression on pooled features) and `linear_probe` (a linear layer
    on a learned mix of the encoder's layers)."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4], metadata={"how": True})
    """Seeds of the fine-tuning runs, one run per seed. A seed determines the initial weights of the new layers, the
    order of examples, and dropout."""
    epochs: PositiveInt | None = None
    """Maximum number of passes over the train split; null is 10, or 3 with more than 5,000 examples."""
    patience: PositiveInt | None = 3
    """Training ends after this many epochs without a better dev score; null trains all epochs. The weights of the best
    epoch are then scored on the test split. With few labels, three epochs can be too few steps to learn anything."""
    learning_rate: PositiveFloat | None = None
    """Peak learning rate; null is 2e-5, 2e-4 for `lora`, 1e-2 for `linear_probe`."""
    warmup_fraction: Fraction = 0.06
    """Share of the steps over which the learning rate rises; afterwards it falls linearly to 0."""
    weight_decay: NonNegativeFloat = 0.01
    """AdamW's decoupled weight decay, on matrices only."""
    batch_size: PositiveInt = 16
    """Number of examples per optimizer step."""
    micro_batch: PositiveInt | None = how(None)
    """Number of examples per forward pass on a device; null is the whole batch. Lower it if memory is short."""
    max_length: PositiveInt = 512
    """Longer examples are truncated to this many tokens (or to the model's longest input, if shorter) and counted."""
    dropout: ProperFraction = 0.1
    """Dropout in the classification head: before and after its hidden layer."""
    pooling: Literal["first", "mean", "last"] | None = None
    """Hidden state that represents a text: the state of the `first` or `last` token, or the `mean` over all tokens.
    null is `first` for encoders, `last` for decoders, and `mean` for decoders with bidirectional attention
    (model.attention). Not used for `tokens`."""
    class_weights: Literal["none", "balanced"] = "none"
    """`balanced` weights examples in inverse proportion to the size of their class, for tasks with rare classes."""
    lora_rank: PositiveInt = 8
    """`lora`: rank of the trained adapters of the weight matrices."""
    lora_alpha: PositiveFloat = 16.0
    """`lora`: the outputs of the adapters are scaled by lora_alpha / lora_rank."""
    domain: str | None = how(None)
    """For a model with separate parameters per domain, such as adapters (docs/guide/forgetting.md): the domain whose
    parameters are used; null uses the domain whose text is nearest to the train split."""
    cpus_per_seed: PositiveFloat = how(1.0)
    """CPU cores reserved by each run."""
    gpus_per_seed: NonNegativeFloat | None = how(None)
    """GPUs reserved by each run; null lets all seeds share one GPU, if the cluster has any."""
    save_model: bool = how(False)
    """`fine_tune`: keep the fine-tuned model of each seed, in the format of transformers (BERT and RoBERTa). Seeds that
    finished earlier without saving a model are run again."""

    @property
    def passing(self) -> int:
        """Number of examples per forward pass on a device."""
        return min(self.micro_batch or self.batch_size, self.batch_size)

    def epochs_of(self, examples: int) -> int:
        """Returns the maximum number of epochs for a number of train examples."""
        return self.epochs or (3 if examples > 5000 else 10)

    def more_epochs(self, examples: int) -> int | None:
        """Returns the number of epochs that a task with few labels needs, or None if `epochs_of` is enough.

        The number makes 300 steps. With 100 labels and the default of 10 epochs, models can predict the most frequent
        class only (docs/science/dapt-tapt.md).
        """
        needed = ceil(300 / self.steps_per_epoch(examples))
        return needed if needed > self.epochs_of(examples) else None

    def may_end_early(self, examples: int) -> bool:
        """Returns whether training can end after fewer than 50 steps without a better dev score."""
        if self.mode == "feature_extraction" or not self.patience or self.patience >= self.epochs_of(examples):
            return False
        return self.steps_per_epoch(examples) * self.patience < 50

    def steps_per_epoch(self, examples: int) -> int:
        """Returns the number of optimizer steps of an epoch, for a number of train examples."""
        return ceil(examples / self.batch_size)


@dataclass(frozen=True)
class HarnessConfig:
    """Tasks of lm-evaluation-harness on which decoders are measured (dontstop dapt, tapt, sequence and evaluate).

    Needs `pip install 'dontstop[harness]'` and objective.kind causal. The models before and after training are
    measured on the same items, so their scores are compared item by item.
    """

    tasks: list[str] = field(default_factory=list)
    """Names of tasks, groups or tags, such as `[arc_easy, wikitext]`: names of lm-evaluation-harness, whose data come
    from the Hugging Face Hub or its cache, and names in harness.include_path. An empty list measures nothing."""
    include_path: str | None = how(None)
    """Folder with your own task files (YAML of lm-evaluation-harness). Their data are local files
    (`dataset_path: json`, `dataset_kwargs.data_files`; paths may be relative to the task file), or a dataset of the
    Hub. null adds no tasks."""
    functions: list[str] = how_list()
    """Names of your own tasks whose entries `!function FILE.NAME` may run the Python file next to the task file. Other
    tasks with such entries are refused, so that no task runs code without your permission."""
    num_fewshot: NonNegativeInt | None = None
    """Number of solved examples in each prompt; null uses the number that each task defines."""
    limit: PositiveInt | None = None
    """Number of items per task: only the first items are used; null uses all items. With a limit, scores cannot be
    compared with published scores."""
    batch_size: PositiveInt = how(8)
    """Number of texts per forward pass. Lower it if memory is short."""


@dataclass(frozen=True)
class OwnMtebTask:
    """A task for sentence vectors from files of your own (jsonl, csv, tsv, parquet or Arrow)."""

    name: str
    """Short name, shown in tables."""
    kind: Literal["classification", "sts", "retrieval"]
    """What the task measures. `classification`: accuracy of logistic regression trained on the vectors of 8 examples
    per label, averaged over 10 random draws of these examples. `sts`: Spearman correlation between the cosine
    similarity of two texts' vectors and the texts' score. `retrieval`: nDCG@10."""
    test: str | list[str] = field(default_factory=list)
    """Files with the items: labelled texts, scored pairs, or queries with relevant texts."""
    train: str | list[str] = field(default_factory=list)
    """`classification`: files with the labelled texts to learn from."""
    corpus: str | list[str] = field(default_factory=list)
    """`retrieval`: files with further texts to search in."""
    text_field: str = "text"
    """Field that holds the text, the first text of a pair, or the query."""
    pair_field: str = "pair"
    """`sts`: field that holds the second text. `retrieval`: field that holds the relevant text or a list of them."""
    label_field: str = "label"
    """`classification`: field that holds the label. `sts`: field that holds the score (a number)."""


@dataclass(frozen=True)
class MtebConfig:
    """Tasks of MTEB on which sentence vectors are measured (dontstop dapt, tapt, sequence and evaluate).

    Needs `pip install 'dontstop[mteb]'` and a pooling (export.sentence_transformers). sentence-transformers computes
    the vectors in the same way as for users of the exported folder.
    """

    tasks: list[str] = field(default_factory=list)
    """Names of tasks of MTEB, such as `[Banking77Classification, SciFact]`. Their data come from the Hugging Face Hub
    or its cache. An empty list measures nothing."""
    languages: list[str] = field(default_factory=list)
    """Languages of multilingual tasks to measure: codes of ISO 639-3, such as `[eng]`; an empty list measures all
    languages of each task."""
    own: list[OwnMtebTask] = how_list()
    """Your own tasks: a list of {name, kind, test, ...} (docs/guide/tasks.md)."""
    batch_size: PositiveInt = how(32)
    """Number of texts per forward pass. Lower it if memory is short."""
