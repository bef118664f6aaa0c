"""The model, its objective, how it is trained, and methods and sequences against forgetting."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

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
class ModelConfig:
    """The model to adapt."""

    path: str = "FacebookAI/roberta-base"
    """A Hugging Face id, a folder, or `demo:bert-tiny` (a 4.4 M parameter BERT fetched from the package index)."""
    revision: str = "main"
    """Branch, tag or commit of a Hugging Face id. Name a commit to make runs repeatable."""
    tokenizer: str | None = None
    """Id or folder of the tokenizer, if the model's folder has none. It must be the model's own tokenizer."""
    attention_dropout: Fraction | None = None
    """Dropout of the attention weights while training; null keeps the model's own. GPUs are faster with 0."""
    trust_remote_code: bool = False
    """Run Python code that comes with the checkpoint. Leave this off unless you trust the author."""


@dataclass(frozen=True)
class ObjectiveConfig:
    """What the model is asked to predict."""

    kind: str = "mlm"
    """What is predicted: `mlm` single tokens, `whole_word` words with all their tokens, `entity` entities and words,
    `span` runs of words (all masked, redrawn each epoch), `causal` the next token (GPT-2, Llama and their like); or
    your own way of masking, `package.module:Class`."""
    mask_fraction: OpenFraction = 0.15
    """Share of the tokens of a row that are predicted, at least one in each row. With 0.3 a model often learns more, at
    little cost (Wettig et al., arXiv 2202.08005). Not used by `causal`."""
    mask_token_fraction: Fraction = 0.8
    """Share of the predicted tokens that are replaced by the mask token."""
    random_token_fraction: Fraction = 0.1
    """Share of the predicted tokens that are replaced by a random ordinary token. The other predicted tokens stay as
    they are."""
    entity_fraction: Fraction = 0.5
    """`entity`: share of the predicted tokens that are taken from entities. Where entities do not suffice, words take
    their place."""
    entity_field: str | None = None
    """`entity`: field of the corpus that holds a document's entities, a list of [start, end) in characters."""
    tagger: str | None = None
    """`entity`: `package.module:Class`, a subclass of adapt.corpus.entities.Tagger that finds the entities of a text,
    in place of `entity_field`. The class is your code; it runs on the workers that tokenize."""
    span_stop: OpenFraction = 0.2
    """`span`: probability that a span ends after each of its words, so lengths are geometric (SpanBERT, arXiv
    1907.10529)."""
    span_max_words: PositiveInt = 10
    """`span`: longest span [words]."""


@dataclass(frozen=True)
class TrainingConfig:
    """Length, optimizer and batch of the training run."""

    max_steps: PositiveInt | None = None
    """Optimizer steps. Training ends at the first limit that it reaches of max_steps, max_tokens, max_flops and epochs;
    with none given, at 12,500 steps."""
    max_tokens: PositiveInt | None = None
    """Training tokens (rounded up to whole steps)."""
    max_flops: PositiveFloat | None = None
    """Floating point operations of the training's forward and backward passes, by the model's dimensions and what the
    method adds (rounded up to whole steps). So models of different sizes, or with different tokens, train at equal
    compute."""
    epochs: PositiveFloat | None = None
    """Passes over the prepared corpus (rounded up to whole steps)."""
    learning_rate: PositiveFloat = 5e-4
    """Peak learning rate."""
    schedule: Literal["linear", "cosine", "constant", "wsd"] = "linear"
    """What the learning rate does after the warm-up: it falls to its floor linearly (`linear`) or like a cosine
    (`cosine`), stays at its peak (`constant`), or stays there and falls linearly over the last steps (`wsd`: warm-up,
    stable, decay)."""
    warmup_fraction: Fraction = 0.06
    """Share of the steps over which the learning rate rises linearly from 0."""
    warmup_steps: NonNegativeInt | None = None
    """Steps over which the learning rate rises, in place of warmup_fraction."""
    cooldown_fraction: Fraction = 0.1
    """`wsd`: share of the steps over which the learning rate falls at the end."""
    decay: Literal["linear", "one_minus_sqrt", "cosine"] = "linear"
    """`wsd`: how the learning rate falls at the end, x being the share of the fall that is done: like 1 - x (`linear`),
    1 - sqrt(x) (`one_minus_sqrt`, Hägele et al., arXiv 2405.18392, as ModernBERT's recipes do), or a cosine."""
    floor_fraction: Fraction = 0.0
    """The learning rate that a schedule falls to, as a share of the peak."""
    optimizer: Literal["adamw", "stable_adamw"] = "adamw"
    """`stable_adamw` lowers the step of a matrix whose gradients outgrow their average (Wortsman et al.,
    arXiv 2304.13013), and needs no gradient clipping."""
    weight_decay: NonNegativeFloat = 0.01
    """AdamW's decoupled weight decay, on matrices only (not on biases and layer norms)."""
    decay_embeddings: bool = True
    """Whether weight decay acts on the embeddings too."""
    embedding_rate: PositiveFloat = 1.0
    """Factor of the learning rate for all tables of embeddings (of tokens, positions, token types), and for a head that
    shares the table of tokens."""
    layer_decay: PositiveFraction = 1.0
    """Factor of the learning rate from each layer to the layer below it. With 0.9, the top layer of 12 trains at the
    full rate, the lowest at 0.9^11 = 31%, and the embeddings at 0.9^12 = 28% of it (Howard and Ruder, arXiv
    1801.06146). 1 trains all layers at the same rate."""
    freeze: list[str] = field(default_factory=list)
    """Parameters that are not trained: `embeddings` (all tables of embeddings), `layers:N` (the N lowest layers), or
    patterns of parameter names such as `*.attention.*`. Frozen parameters need no gradient and no optimizer state."""
    beta1: ProperFraction = 0.9
    """AdamW's decay of the gradient mean."""
    beta2: ProperFraction = 0.98
    """AdamW's decay of the squared-gradient mean."""
    epsilon: PositiveFloat = 1e-6
    """AdamW's term against division by zero."""
    max_gradient_norm: NonNegativeFloat = 1.0
    """Gradients of a larger global norm are scaled down to this norm; 0 turns this off."""
    global_batch_size: PositiveInt = 2048
    """Sequences in one optimizer step, over all workers."""
    sequence_length: PositiveInt = 512
    """Tokens in one sequence, special tokens included."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = how("auto")
    """Arithmetic of the forward and backward pass (weights stay fp32). `auto`: bf16 if the hardware is
    quicker in it, else fp32. `fp16`, with loss scaling, is for GPUs without bf16."""
    micro_batch: PositiveInt | Literal["auto"] = how("auto")
    """At most this many sequences pass through a device at once; gradient accumulation is derived from this number.
    `auto`: as many as the device's memory holds."""
    gradient_checkpointing: bool = how(False)
    """Compute each layer's activations again in the backward pass instead of keeping them: a third more work, a
    fraction of the memory."""
    compile: bool = how(False)
    """Compile the model's layers with torch.compile: a slow start, then faster steps. Needs a C++ compiler."""
    checkpoint_interval_steps: PositiveInt = how(500)
    """Steps between two resumable checkpoints."""
    keep_checkpoints: NonNegativeInt = how(2)
    """Number of checkpoints that are kept. 0: one while it trains, none once it has finished, as studies of many
    trainings want."""
    log_interval_steps: PositiveInt = how(10)
    """Steps between two progress reports."""


@dataclass(frozen=True)
class SequenceConfig:
    """A sequence of domains (dontstop sequence): each of corpus.sources is a domain; each task has one as `domain`."""

    order: list[str] = how_list()
    """Names of corpus.sources in the order in which they are learnt; an empty list keeps the order of corpus.sources.
    Sources that are left out are not learnt."""
    mode: Literal["continual", "separate", "joint"] = how("continual")
    """How the domains are learnt: `continual` one after another, each from the model that the domain before left;
    `separate` each from model.path (ONE); `joint` all at once, mixed (JOINT)."""
    full_matrix: bool = how(True)
    """`true` tests a task after its own domain and after every later one. `false` tests a task only after its own
    domain and after the last, which is enough for averages and forgetting rates; the cost then no longer grows with the
    square of the number of domains."""
    forward_transfer: bool = how(False)
    """Also fine-tune and test each task on model.path and on the model just before the task's domain is learnt: this
    measures forward transfer on scores."""
    replay_fraction: OpenFraction | None = how(None)
    """Share of the rows of each training that are text of the domains before, from the second domain on, with any
    method; every row of that text comes equally often. null replays none, or what the method itself asks for."""
    domain_ids: bool = how(True)
    """Where the method gives each domain parts of its own (docs/guide/forgetting.md): `true` teaches a task with the
    parts of its domain; `false` with those of the domain whose text is nearest to the task's train split. Held-out
    losses are reported both ways."""


@dataclass(frozen=True)
class MethodConfig:
    """What is done against forgetting while training."""

    kind: str = "plain"
    """`plain` does nothing (NCL in dontstop sequence). Every other method has the name of the section below that holds
    its options (docs/science/equations.md). `package.module:Class` takes your own method (docs/develop/extending.md);
    the section of its options is called like the class, in snake_case."""


def section_of(kind: str) -> str:
    """The section of a method's options: the method's name, or, for a user's own, that of the class in snake_case."""
    module, _, name = kind.partition(":")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower() if name else module
