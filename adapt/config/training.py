"""Defines the configuration of the model, objective, training, methods against forgetting, and domain sequences."""

import re
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

MASKED, RANDOM = 0.8, 0.1
"""Shares of the predicted tokens that are replaced by the mask token, and by a random ordinary token (Devlin et al.
2019). The others are unchanged."""
FROM_ENTITIES = 0.5
"""`entity`: share of the predicted tokens that are taken from entities."""
SPAN_STOP, SPAN_WORDS = 0.2, 10
"""`span`: probability that a span ends after each of its words, and length of the longest span [words] (SpanBERT)."""


@dataclass(frozen=True)
class ModelConfig:
    """The model to adapt."""

    path: str = "FacebookAI/roberta-base"
    """Hugging Face id, folder, or `demo:bert-tiny` (a BERT of 4.4 M parameters from the Python package index)."""
    revision: str = "main"
    """Branch, tag or commit of a Hugging Face id. Name a commit to make runs reproducible."""
    tokenizer: str | None = None
    """Id or folder of the tokenizer, if the model's folder has none. It must be the tokenizer the model was trained
    with."""
    attention_dropout: Fraction | None = None
    """Dropout of the attention weights during training; null keeps the model's value. GPUs train faster with 0."""
    attention: Literal["own", "bidirectional"] = "own"
    """`bidirectional` turns a decoder such as Llama into an encoder, in which each token attends to its whole document
    (LLM2Vec, arXiv 2404.05961). Train it with `objective.kind: mntp`. Its config.json has `is_causal: false`, which
    transformers 5 applies when it loads the model. If the tokenizer has no mask token, one is added."""
    head: Literal["require", "new"] = "require"
    """`new` adds a masked-language-model head to an encoder that has none, such as a model published for sentence
    embeddings. The head's weights are random, except those of its last layer, which is the table of token embeddings.
    `require` refuses models without a head."""
    head_warmup_steps: NonNegativeInt = 0
    """With a new head: number of steps at the start of the first training run in which only the head is trained."""
    reinitialize_top: NonNegativeInt = 0
    """Number of top layers that get new random weights, drawn with `seed`, before dapt, tapt, finetune or the first
    domain of a sequence. A pooler gets new weights too. For fine-tuning on few examples, new weights in 1 to 6 layers
    of BERT-large helped (Zhang et al., arXiv 2006.05987, section 5). The language-model head keeps its weights;
    fine-tuning always starts with a new head."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the checkpoint. Leave this off unless you trust its author."""


@dataclass(frozen=True)
class ObjectiveConfig:
    """The training objective: which tokens the model predicts."""

    earlier: ClassVar[Mapping[str, Any]] = {
        "mask_token_fraction": MASKED,
        "random_token_fraction": RANDOM,
        "entity_fraction": FROM_ENTITIES,
        "span_stop": SPAN_STOP,
        "span_max_words": SPAN_WORDS,
    }
    kind: str = "mlm"
    """These kinds predict masked tokens, which are resampled in each epoch: `mlm` (single tokens), `whole_word` (whole
    words), `entity` (entities and words), `span` (runs of words), and `difference` (single tokens, preferably in words
    that are frequent in the domain and rare in general text, evaluation.general_paths; arXiv 2305.14577). `causal`
    predicts the next token (GPT-2, Llama and similar models). `causal_detour` predicts the next token with an encoder,
    whose attention is causal during this training run only; masked language modelling must follow (arXiv 2605.12438).
    `tsdae` trains sentence vectors: it reconstructs a sentence from the vector of only a part of the sentence's words
    (section `tsdae`; arXiv 2104.06979). `mntp` predicts masked tokens with a decoder that `model.attention` made
    bidirectional: the state at the position before a token predicts the token (arXiv 2404.05961).
    `package.module:Class` names your own masking."""
    mask_fraction: OpenFraction = 0.15
    """Share of a row's tokens that are predicted, at least one token per row. At 0.3 a model often learns more at
    little cost (Wettig et al., arXiv 2202.08005). Of these tokens, 80% are replaced by the mask token and 10% by a
    random token. Not used by `causal`, `causal_detour` and `tsdae`."""
    entity_field: str | None = None
    """`entity`: corpus field with a document's entities: a list of [start, end) character offsets."""
    tagger: str | None = None
    """`entity`: `package.module:Class`, a subclass of adapt.corpus.entities.Tagger that finds the entities of a text,
    instead of `entity_field`. The class is your code; it runs on the workers that tokenize."""


@dataclass(frozen=True)
class PhaseConfig:
    """One phase of a training run that consists of several phases."""

    steps: PositiveInt | None = None
    """Length of the phase [optimizer steps]. Set at most one of steps, tokens and fraction. One phase may have none of
    them; its length is the rest of the run."""
    tokens: PositiveInt | None = None
    """Length of the phase [training tokens] (rounded up to whole steps)."""
    fraction: PositiveFraction | None = None
    """Length of the phase as a share of the run. The run's length is then set by training.max_steps, max_tokens,
    max_flops or epochs."""
    learning_rate: PositiveFloat | None = None
    """Peak learning rate of the phase; null uses training.learning_rate."""
    schedule: Literal["constant", "linear", "one_minus_sqrt", "cosine"] = "constant"
    """Learning rate over the phase, after its warm-up: stays at the peak (`constant`), or falls from the peak to the
    floor. With x from 0 to 1 over the falling steps, the rate is floor + f(x) (peak - floor), where f(x) is 1 - x
    (`linear`), 1 - sqrt(x) (`one_minus_sqrt`; Hägele et al., arXiv 2405.18392), or (1 + cos(pi x)) / 2 (`cosine`)."""
    floor_fraction: Fraction = 0.0
    """Learning rate at the end of a falling schedule, as a share of the phase's peak."""
    warmup_steps: NonNegativeInt = 0
    """Number of steps at the start of the phase over which the learning rate rises linearly from 0. A phase continues
    with the optimizer state of the previous phase, so only the first phase may need a warm-up."""
    sequence_length: PositiveInt | None = None
    """Number of tokens per sequence; null uses training.sequence_length."""
    global_batch_size: PositiveInt | None = None
    """Number of sequences per optimizer step; null uses training.global_batch_size."""
    objective: dict[str, Any] = field(default_factory=dict)
    """Fields of section objective that differ in this phase, such as `{mask_fraction: 0.15}`."""
    mixture: dict[str, Any] = field(default_factory=dict)
    """Fields of section mixture that differ in this phase: replay_fraction (0 trains on the domain only), replay_last,
    temperature and order."""
    weights: dict[str, NonNegativeFloat] = field(default_factory=dict)
    """Sampling weights of corpus.sources in this phase, keyed by name; a source without a weight is not trained on.
    If empty, the weights of corpus.sources apply."""


@dataclass(frozen=True)
class StopConfig:
    """A rule that ends a training run early, judged at each measurement of `evaluation.interval_steps`."""

    metric: str = "domain_loss"
    """Metric that the rule applies to: `domain_loss`, `general_loss` (with evaluation.general_paths), or in a sequence
    `past_loss`, the mean over the earlier domains [nats per predicted token]. With evaluation.probe also the dev score
    of a task's probe, `TASK.dev_METRIC`, such as `chemprot.dev_macro_f1`."""
    patience: PositiveInt | None = None
    """The training run ends after this many consecutive measurements without an improvement. The last model is
    exported. Set either patience or rise."""
    minimum: NonNegativeFloat = 0.0
    """With patience: minimum change from the best value so far that counts as an improvement."""
    rise: PositiveFloat | None = None
    """Forgetting budget [nats per predicted token]: the training run ends when the loss is more than this amount above
    its value before the first step. The model of the last measurement within the budget is exported."""


@dataclass(frozen=True)
class TrainingConfig:
    """Length, optimizer and batches of the training run."""

    earlier: ClassVar[Mapping[str, Any]] = {"decay_embeddings": True}
    max_steps: PositiveInt | None = None
    """Maximum number of optimizer steps. Training ends at the first limit reached of max_steps, max_tokens, max_flops
    and epochs; if none is set, after 12,500 steps."""
    max_tokens: PositiveInt | None = None
    """Maximum number of training tokens (rounded up to whole steps)."""
    max_flops: PositiveFloat | None = None
    """Maximum number of floating point operations of the forward and backward passes, computed from the model's
    dimensions and the method (rounded up to whole steps). Use it to train models of different sizes or tokenizers at
    equal compute."""
    epochs: PositiveFloat | None = None
    """Maximum number of passes over the prepared corpus (rounded up to whole steps)."""
    learning_rate: PositiveFloat = 5e-4
    """Peak learning rate, reached after the warm-up."""
    schedule: Literal["linear", "cosine", "constant", "wsd"] = "linear"
    """Learning rate after the warm-up: falls to its floor linearly (`linear`) or like a cosine (`cosine`), stays at its
    peak (`constant`), or stays at its peak and falls over the last steps (`wsd`: warm-up, stable, decay)."""
    warmup_fraction: Fraction = 0.06
    """Share of the steps over which the learning rate rises linearly from 0."""
    warmup_steps: NonNegativeInt | None = None
    """Number of steps over which the learning rate rises linearly from 0; null uses warmup_fraction."""
    cooldown_fraction: Fraction = 0.1
    """`wsd`: share of the steps, at the end, over which the learning rate falls."""
    decay: Literal["linear", "one_minus_sqrt", "cosine"] = "linear"
    """`wsd`: shape of the fall over the last steps. With x from 0 to 1 over these steps, the rate is
    floor + f(x) (peak - floor), where f(x) is 1 - x (`linear`), 1 - sqrt(x) (`one_minus_sqrt`; Hägele et al., arXiv
    2405.18392, as in ModernBERT's recipes), or (1 + cos(pi x)) / 2 (`cosine`)."""
    floor_fraction: Fraction = 0.0
    """Final learning rate of a schedule that falls, as a share of the peak."""
    optimizer: Literal["adamw", "stable_adamw"] = "adamw"
    """`stable_adamw` reduces the step size of a matrix when its gradients exceed their running average (Wortsman et
    al., arXiv 2304.13013), and needs no gradient clipping."""
    weight_decay: NonNegativeFloat = 0.01
    """AdamW's decoupled weight decay, on matrices only: also on embeddings, but not on biases and layer norms."""
    embedding_rate: PositiveFloat = 1.0
    """Factor by which the learning rate is multiplied for all embedding tables (of tokens, positions and token types),
    and for an output head that shares the token table."""
    layer_decay: PositiveFraction = 1.0
    """Ratio of each layer's learning rate to the rate of the layer above. With 0.9, the top layer of 12 trains at the
    full rate, the lowest at 0.9^11 = 31%, and the embeddings at 0.9^12 = 28% of the full rate (Howard and Ruder, arXiv
    1801.06146). 1 trains all layers at the same rate."""
    freeze: list[str] = field(default_factory=list)
    """Parameters that are not trained: `embeddings` (all embedding tables), `layers:N` (the N lowest layers), or
    patterns of parameter names such as `*.attention.*`. Frozen parameters need no memory for gradients and optimizer
    state. This field can be combined with any method. The method `freeze` also freezes embeddings and lowest layers; it
    exists for comparisons with other methods in studies of forgetting."""
    beta1: ProperFraction = 0.9
    """AdamW's decay rate of the running mean of gradients."""
    beta2: ProperFraction = 0.98
    """AdamW's decay rate of the running mean of squared gradients."""
    epsilon: PositiveFloat = 1e-6
    """AdamW's epsilon, which prevents division by zero."""
    max_gradient_norm: NonNegativeFloat = 1.0
    """Maximum global norm of the gradients: larger gradients are scaled down to it; 0 turns clipping off."""
    on_spike: Literal["stop", "skip"] | None = None
    """What happens at a spike: a step whose loss or gradient norm is not finite, or exceeds the median of the last 128
    steps by more than 6 deviations (1.4826 times the median absolute deviation). `stop` ends the run before the step
    changes the weights, and names the step's text. `skip` leaves weights and optimizer unchanged and continues; the
    skipped step counts as a step. A run that stopped continues if you change `stop` to `skip`. With null, only
    gradients that are not finite end the run."""
    max_spikes: PositiveInt = how(10)
    """`on_spike: skip`: maximum number of consecutive steps that are skipped. One more spike ends the run."""
    global_batch_size: PositiveInt = 2048
    """Number of sequences per optimizer step, over all workers."""
    sequence_length: PositiveInt = 512
    """Number of tokens per sequence, including special tokens."""
    batch_ramp: list[tuple[PositiveInt, PositiveInt]] = field(default_factory=list)
    """Smaller batches at the start of a run: a list of [tokens, sequences], both ascending, such as `[[1000000, 64],
    [3000000, 128]]`. Until the run has trained on `tokens` tokens, each step has `sequences` sequences; after the last
    entry, it has global_batch_size. The loss of each step is the mean over its own batch, and the learning rate depends
    on the number of steps (McCandlish et al., arXiv 1812.06162)."""
    length_ramp: list[tuple[PositiveInt, PositiveInt]] = field(default_factory=list)
    """Shorter sequences at the start of a run: a list of [tokens, sequence length], both ascending. After the last
    entry, sequences have sequence_length (Li et al., arXiv 2108.06084). When the length changes, the text is cut into
    new rows, and each source continues after the tokens that were already trained on."""
    phases: list[PhaseConfig] = field(default_factory=list)
    """Phases of the run: a list of {steps, learning_rate, objective, …}, trained one after another. Each phase is a
    separate stage. It continues from the previous phase's weights, optimizer moments, step count and position in the
    corpus. Phases replace schedule, warmup_*, cooldown_fraction, decay and floor_fraction. The run's
    length is the sum of their lengths, unless a phase is defined as a share of the run."""
    stop: StopConfig | list[StopConfig] | None = None
    """Rule that ends the training run early, such as `{metric: domain_loss, patience: 3, minimum: 0.01}` or the
    forgetting budget `{metric: general_loss, rise: 0.1}`. In a list of rules, the first rule that applies ends the run.
    Needs evaluation.interval_steps. null trains all steps."""
    keep: Literal["last", "best"] = "last"
    """Model to export: the model of the `last` step, or of the measurement (evaluation.interval_steps) with the `best`
    keep_metric. The best of many measurements looks better than the model is. So reported metrics are measured on
    documents, and on a half of the dev examples, that are not used to choose the model."""
    keep_metric: str = "domain_loss"
    """Metric that chooses the model with `keep: best`. The allowed names are the same as for `stop.metric`."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = how("auto")
    """Number format of the forward and backward pass (weights stay in fp32). `auto` is bf16 if the hardware is faster
    in it, else fp32. `fp16`, with loss scaling, is for GPUs without bf16."""
    micro_batch: PositiveInt | Literal["auto"] = how("auto")
    """Maximum number of sequences per forward pass on a device; the number of gradient accumulation steps is computed
    from it. `auto` uses as many as fit in the device's memory."""
    gradient_checkpointing: bool = how(False)
    """Recompute each layer's activations in the backward pass instead of storing them. This takes about a third more
    computation and a fraction of the memory."""
    compile: bool = how(False)
    """Compile the model's layers with torch.compile: the start is slower, the steps are faster. Needs a C++
    compiler."""
    checkpoint_interval_steps: PositiveInt = how(500)
    """Number of steps between two resumable checkpoints."""
    keep_checkpoints: NonNegativeInt = how(2)
    """Number of checkpoints that are kept. 0 keeps one checkpoint during training and deletes it afterwards, for
    studies with many training runs."""
    log_interval_steps: PositiveInt = how(10)
    """Number of steps between two progress reports."""

    @property
    def rules(self) -> list[StopConfig]:
        """The rules of `stop` as a list, which is empty without rules."""
        return [] if self.stop is None else [self.stop] if isinstance(self.stop, StopConfig) else list(self.stop)

    @property
    def decides_by_points(self) -> bool:
        """Whether measurements during training decide when the training run ends or which model is exported."""
        return bool(self.rules) or self.keep == "best"


@dataclass(frozen=True)
class SequenceConfig:
    """Training on several domains, usually one after another (dontstop sequence).

    Each of corpus.sources is a domain; each task names its domain in `domain`.
    """

    order: list[str] = how_list()
    """Names of corpus.sources in the order of learning; an empty list keeps the order of corpus.sources. Sources that
    are not listed are not used."""
    mode: Literal["continual", "separate", "joint"] = how("continual")
    """How the domains are learned: `continual` one after another, each from the model of the previous domain;
    `separate` each from model.path (ONE in the literature); `joint` all at once, mixed (JOINT)."""
    full_matrix: bool = how(True)
    """`true` tests each task after its own domain and after every later domain. `false` tests it only after its own
    domain and after the last domain, which suffices for averages and forgetting rates; the cost then grows linearly
    with the number of domains, not quadratically."""
    forward_transfer: bool = how(False)
    """Also fine-tune and test each task on model.path and on the model just before the task's domain is learned, to
    measure forward transfer of scores."""
    replay_fraction: OpenFraction | None = how(None)
    """Share of the rows of each training run that replay text of earlier domains, from the second domain on, with any
    method. All rows of earlier domains are replayed equally often. null replays nothing, or as much as the method
    needs."""
    domain_ids: bool = how(True)
    """For methods with separate parameters per domain, such as adapters (docs/guide/forgetting.md): `true` fine-tunes a
    task with the parameters of its own domain; `false` uses the parameters of the domain whose text is nearest to the
    task's train split. Held-out losses are reported both ways."""


@dataclass(frozen=True)
class MethodConfig:
    """The method against forgetting during training."""

    kind: str = "plain"
    """`plain` trains without a method against forgetting (NCL in the literature). Every other method is configured in
    the section with its name (docs/science/equations.md). `package.module:Class` names your own method
    (docs/develop/extending.md), configured in the section with the class's name in snake_case."""


def section_of(kind: str) -> str:
    """Returns the name of the section with a method's options.

    The section has the method's name or, for a user's method, the class name in snake_case.
    """
    module, _, name = kind.partition(":")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower() if name else module
