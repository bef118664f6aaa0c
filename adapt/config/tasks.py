"""Labelled tasks: what they are, how a model is adapted to one (TAPT) and taught it (fine-tuning)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from adapt.config.fields import (
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ProperFraction,
    how,
    how_list,
)


@dataclass(frozen=True)
class TaskConfig:
    """A labelled task."""

    name: str = how("task")
    """A short name, for folders and reports."""
    train: str | list[str] = how_list()
    """Labelled examples to learn from: files as in corpus.paths."""
    dev: str | list[str] = how_list()
    """Labelled examples on which the best epoch is chosen."""
    test: str | list[str] = how_list()
    """Labelled examples that are looked at once, for the scores."""
    kind: Literal["single_label", "multi_label", "tokens"] = "single_label"
    """`single_label`: label_field holds one label; `multi_label`: label_field holds a list of labels, which may be
    empty; `tokens`: text_field holds a list of words, and label_field a list with the label of each word (B-X, I-X,
    O)."""
    text_field: str = "text"
    """Field that holds the text."""
    pair_field: str | None = None
    """Field that holds a second text, read after the first: an aspect, a hypothesis, an answer."""
    label_field: str = "label"
    """Field that holds the label or labels (strings or integers)."""
    id_field: str | None = None
    """Field that holds an example's id; null numbers the examples. No two examples may have the same id."""
    domain: str | None = how(None)
    """dontstop sequence: the name of the source (corpus.sources) that the task belongs to; null is the task's name."""
    metric: Literal["macro_f1", "micro_f1", "accuracy", "entity_f1"] | None = None
    """Score that models are judged by; null is macro_f1, or entity_f1 for `tokens`. The paper takes micro_f1 for
    ChemProt."""
    max_bad_fraction: Fraction = how(0.01)
    """The job fails if more than this share of the examples is unusable (no text, no label, malformed)."""


@dataclass(frozen=True)
class TaptConfig:
    """Task-adaptive pre-training: on the text of a task's train split, without its labels."""

    batch_examples: PositiveInt | None = 256
    """Examples whose text fills one optimizer step, on average; training.global_batch_size is then derived from this
    number. null takes training.global_batch_size as it is configured."""
    transductive: bool = False
    """Also train on the text of dev and test. Scores of such models are marked wherever they are shown."""
    pool_paths: str | list[str] = how_list()
    """A pool: more unlabelled text of the task's kind, trained on together with the task's own (Curated-TAPT); paths
    like corpus.paths. Documents that hold dev or test text are left out."""
    pool_text_field: str = "text"
    """Field that holds the text of the pool."""


@dataclass(frozen=True)
class SelectConfig:
    """Documents chosen of a pool: what dontstop select leaves, and TAPT, or DAPT in place of a corpus, trains on."""

    kind: str | list[Any] = "random"
    """How documents are chosen: `random`, `dsir`, `classifier`, `knn`, `tsds`, `semdedup`, `perplexity`, or your own
    selection, `package.module:Class` (docs/guide/selection.md). A list narrows the pool step by step: each is `name` or
    `name: {option: value}`. The section that is called like a selection holds its options; those in the list go before
    them."""
    pool_paths: str | list[str] = how_list()
    """The pool: paths like corpus.paths. Documents that hold dev or test text of the tasks, or a text of
    corpus.decontaminate, are left out first."""
    pool_text_field: str = "text"
    """Field that holds the text of the pool."""
    target_paths: str | list[str] = how_list()
    """Text that those that are chosen should resemble: paths like corpus.paths. An empty list takes the text of the
    tasks' train split."""
    target_text_field: str = "text"
    """Field that holds the text of the target."""
    per_example: PositiveInt | None = None
    """Budget: so many documents for each text of the target. Of the three budgets one is set."""
    documents: PositiveInt | None = None
    """Budget: so many documents."""
    tokens: PositiveInt | None = None
    """Budget: documents of so many tokens in all, to within one document."""
    keep: PositiveFloat = 10.0
    """In a list of selections, each but the last passes on so many times the budget."""
    embedder: str = "tfidf"
    """Whose vectors `knn`, `tsds` and `semdedup` compare: `tfidf`, `static`, `transformer`, `vampire`, or your own
    embedder, `package.module:Class` (docs/guide/selection.md). The section that is called like it holds its options."""
    index: Literal["auto", "flat", "ivf", "ivf_pq", "hnsw"] = "auto"
    """How the nearest vectors are found: `flat` compares all, the others some; `auto` is flat up to a million documents
    (docs/guide/selection.md)."""
    min_recall: Fraction = 0.95
    """Share of the nearest documents that the index must find, measured on 200 texts of the target. It searches as
    widely as that takes, and is refused where it cannot."""
    measure_loss: bool = True
    """dontstop select: also measure the model's held-out loss on what was chosen, on random documents and on the
    target, 20,000 tokens of each, on the CPUs of this machine."""


@dataclass(frozen=True)
class FinetuneConfig:
    """Fine-tuning of a model on a task. Defaults are the paper's."""

    mode: Literal["fine_tune", "feature_extraction", "linear_probe", "lora"] = "fine_tune"
    """`fine_tune` trains all weights; `lora` trains low-rank additions to them (arXiv 2106.09685). Two modes leave the
    encoder as it is: `feature_extraction` (logistic regression on pooled features) and `linear_probe` (a linear layer
    on a learned mix of the encoder's layers)."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4], metadata={"how": True})
    """One run for each seed. A seed decides the first weights of the new layers, the order of the examples, and
    dropout."""
    epochs: PositiveInt | None = None
    """Passes over the train split; null is 10, or 3 above 5,000 examples."""
    patience: PositiveInt = 3
    """Training ends after this many epochs without a better dev score. The weights of the best epoch are tested."""
    learning_rate: PositiveFloat | None = None
    """Peak learning rate; null is 2e-5, 2e-4 for `lora`, 1e-2 for `linear_probe`."""
    warmup_fraction: Fraction = 0.06
    """Share of the steps over which the learning rate rises; then it falls linearly to 0."""
    weight_decay: NonNegativeFloat = 0.01
    """AdamW's decoupled weight decay, on matrices only."""
    batch_size: PositiveInt = 16
    """Examples in one step."""
    micro_batch: PositiveInt | None = how(None)
    """Examples that pass a device at once; null is all of a step. Fewer take less memory."""
    max_length: PositiveInt = 512
    """Longer examples are cut to this many tokens (or to the longest that the model takes, if that is less), and
    counted."""
    dropout: ProperFraction = 0.1
    """Dropout before and after the layer between encoder and labels."""
    pooling: Literal["first", "mean", "last"] | None = None
    """Hidden state that stands for a text: that of the `first` token, the `mean` over all tokens, or that of the `last`
    token. null is `first` for encoders and `last` for decoders. Not used for `tokens`."""
    class_weights: Literal["none", "balanced"] = "none"
    """`balanced`: the examples of a class weigh in inverse proportion to their number."""
    lora_rank: PositiveInt = 8
    """`lora`: rank of the additions."""
    lora_alpha: PositiveFloat = 16.0
    """`lora`: the additions are scaled by lora_alpha / lora_rank."""
    domain: str | None = how(None)
    """The domain whose parts are used, of a model that has parts for several (docs/guide/forgetting.md); null takes the
    domain whose text is nearest to the train split."""
    cpus_per_seed: PositiveFloat = how(1.0)
    """CPU cores each run reserves."""
    gpus_per_seed: NonNegativeFloat | None = how(None)
    """GPUs each run reserves; null shares one GPU among the seeds, if the cluster has any."""
    save_model: bool = how(False)
    """`fine_tune`: keep the fine-tuned model of each seed, in the form that transformers loads (BERT and RoBERTa).
    Seeds that were finished without keeping their model run again."""

    @property
    def passing(self) -> int:
        """Examples that pass a device at once."""
        return min(self.micro_batch or self.batch_size, self.batch_size)
