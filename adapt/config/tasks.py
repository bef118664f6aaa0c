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
    """`single_label`: label_field holds one label; `multi_label`: a list of them, which may be empty; `tokens`:
    text_field holds a list of words and label_field a list with the label of each (B-X, I-X, O)."""
    text_field: str = "text"
    """Field that holds the text."""
    pair_field: str | None = None
    """Field that holds a second text, read after the first: an aspect, a hypothesis, an answer."""
    label_field: str = "label"
    """Field that holds the label or labels (strings or integers)."""
    id_field: str | None = None
    """Field that holds an example's id; null numbers the examples. An id may come once."""
    domain: str | None = how(None)
    """jobs/sequence.py: the source of the corpus that it belongs to; null is the one with the task's name."""
    metric: Literal["macro_f1", "micro_f1", "accuracy", "entity_f1"] | None = None
    """What models are judged by; null is macro_f1, and entity_f1 for `tokens` (micro_f1 for ChemProt in the paper)."""
    max_bad_fraction: Fraction = how(0.01)
    """Largest share of unusable examples (no text, no label, malformed) before the job fails."""


@dataclass(frozen=True)
class TaptConfig:
    """Task-adaptive pre-training: on the text of a task's train split, without its labels."""

    batch_examples: PositiveInt | None = 256
    """Examples whose text fills one optimizer step, on average; training.global_batch_size is then derived from it.
    null takes the configured one."""
    transductive: bool = False
    """Also train on the text of dev and test. Scores of such models are marked wherever they are shown."""
    pool_paths: str | list[str] = how_list()
    """More unlabelled text of the task's kind, trained on with its own (Curated-TAPT): paths as corpus.paths. Documents
    that hold dev or test text are left out."""
    pool_text_field: str = "text"
    """Field that holds the text of the pool."""
    random_per_example: PositiveInt | None = None
    """Take this many documents of the pool for each train example of all tasks, as section `select` says: at random
    (RAND-TAPT) unless it says otherwise. null takes the whole pool."""


@dataclass(frozen=True)
class SelectConfig:
    """Which documents of a pool are taken, where not all are."""

    kind: str = "random"
    """`random`; `longest`; or your own, `package.module:Class` (docs/extension.md)."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of your own selection."""


@dataclass(frozen=True)
class FinetuneConfig:
    """Teaching a model a task. Defaults are the paper's."""

    mode: Literal["fine_tune", "feature_extraction", "linear_probe", "lora"] = "fine_tune"
    """`fine_tune` trains all weights; `lora` low-rank additions to them (arXiv 2106.09685); the encoder stays as it is
    under `feature_extraction` (logistic regression on pooled features) and `linear_probe` (a linear layer on a learned
    mix of its layers)."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4], metadata={"how": True})
    """One run each: of the new layers' weights, the order of the examples, and dropout."""
    epochs: PositiveInt | None = None
    """Passes over the train split; null is 10, or 3 above 5,000 examples."""
    patience: PositiveInt = 3
    """Epochs without a better dev score after which training ends. The best epoch's weights are tested."""
    learning_rate: PositiveFloat | None = None
    """Peak learning rate; null is 2e-5, 2e-4 for `lora`, 1e-2 for `linear_probe`."""
    warmup_fraction: Fraction = 0.06
    """Share of the steps over which the learning rate rises; then it falls linearly to 0."""
    weight_decay: NonNegativeFloat = 0.01
    """AdamW's decoupled weight decay, on matrices only."""
    batch_size: PositiveInt = 16
    """Examples in one step."""
    max_length: PositiveInt = 512
    """Longer examples are cut to this many tokens, or to the model's longest, and counted."""
    dropout: ProperFraction = 0.1
    """Before and after the layer between encoder and labels."""
    pooling: Literal["first", "mean", "last"] | None = None
    """What of a text's hidden states is read: the first token's, their mean, the last token's. null is `first` for
    encoders and `last` for decoders. Not used for `tokens`."""
    class_weights: Literal["none", "balanced"] = "none"
    """`balanced`: a class's examples weigh in inverse proportion to their number."""
    lora_rank: PositiveInt = 8
    """`lora`: rank of the additions."""
    lora_alpha: PositiveFloat = 16.0
    """`lora`: they are scaled by lora_alpha / lora_rank."""
    cpus_per_seed: PositiveFloat = how(1.0)
    """CPU cores each run reserves."""
    gpus_per_seed: NonNegativeFloat | None = how(None)
    """GPUs each run reserves; null shares one among the seeds, where the cluster has any."""
    save_model: bool = how(False)
    """`fine_tune`: keep the fine-tuned model of each seed, as transformers loads it (BERT and RoBERTa). Seeds that
    ended without it run again."""
