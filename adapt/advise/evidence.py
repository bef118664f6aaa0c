"""Collects the evidence for advice, and estimates the cost of each recipe from the evidence.

The evidence consists of sizes, word statistics and losses of the texts, and of statistics of the tasks. The cost of a
recipe is given in tokens, floating-point operations, device-hours and price.

For TAPT on a selection, this module also proposes the size of the selection, after Don't Stop Pretraining, tables 8 and
9: 50 documents per training example, and ten passes over these documents (the paper trains for 1,100 steps of 256 texts
on 25,000 neighbours). Fewer documents are proposed for a small pool, so that all passes together are at most half of
one pass over the pool. With more documents, training on the whole pool would cost little more.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from adapt.config import Config, FinetuneConfig, TrainingConfig
from adapt.config.job_config import TAPT_LENGTH
from adapt.method.table import method_of
from adapt.model.size import ModelSize
from adapt.runner.record import Record
from adapt.runner.store import Store
from adapt.show.blocks import Block, Table, TextBlock
from adapt.train.capacity.flops import Workload, forward_flops, training_flops, with_flops_as_steps, workload
from adapt.train.capacity.forecast import forecast
from adapt.train.schedule import length_of
from adapt.vocabulary.vocabulary_results import Extension


@dataclass(frozen=True)
class TextEvidence:
    """Sizes, word statistics and loss of a corpus, from a sample.

    A size is None if it cannot be known without reading the whole corpus.
    """

    documents: int | None
    bytes: int | None
    """Size of the corpus's text [bytes of UTF-8]."""
    tokens: int | None
    is_exact: bool
    """True if `documents`, `bytes` and `tokens` were counted, False if they are estimates."""
    sampled: int
    """Number of documents in the sample."""
    fertility: float
    """Number of tokens per word or punctuation mark (Rust et al., arXiv 2012.15613)."""
    loss: float
    """The model's loss on the sample [nats per predicted token]."""
    extension: Extension | None = None
    """Savings from adding new tokens to the vocabulary. The number of new tokens is chosen at the elbow of the savings
    curve (see `adapt.vocabulary`). None for texts other than `corpus`, and if new tokens would save nothing."""

    padding: float | None = None
    """Share of the token positions that would be padding during training. None if the model packs several documents
    into a row."""

    def cells(self) -> list[str]:
        """Formats the sizes and statistics as a row of the table of texts, without the name."""
        about = "" if self.is_exact else "about "
        sizes = [millions(self.bytes, "MB"), millions(self.tokens, "M")]
        shown = [size if size == "not known" else about + size for size in sizes]
        return [*shown, f"{self.sampled:,}", f"{self.fertility:.2f}", f"{self.loss:.2f}"]


@dataclass(frozen=True)
class TaskEvidence:
    """Sizes, statistics and loss of a labelled task. All fields except `test` and `leaked` describe the train split."""

    name: str
    examples: int
    tokens: int
    classes: int
    rarest: int
    """Number of train examples of the rarest class. For tasks of kind `tokens`, number of words of the rarest class."""
    test: int
    """Number of test examples."""
    leaked: int
    """Number of texts of the test split that are also in the train split."""
    fertility: float
    loss: float
    overlap: float | None
    """Share of the task's most frequent words that are also among the most frequent words of the corpus, in samples of
    equal size."""
    general_overlap: float | None
    """Share of the task's most frequent words that are also among the most frequent words of general text, in samples
    of equal size."""

    def cells(self) -> list[str]:
        """Formats the sizes and statistics as a row of the table of tasks."""
        shares = {"corpus": self.overlap, "general": self.general_overlap}
        common = ", ".join(f"{name} {share:.1%}" for name, share in shares.items() if share is not None)
        return [
            self.name,
            f"{self.examples:,}",
            f"{self.classes}",
            f"{self.rarest:,}",
            f"{self.leaked} of {self.test:,}",
            f"{self.fertility:.2f}",
            f"{self.loss:.2f}",
            common,
        ]


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model that can be read from the model's files."""

    kind: str = ""
    """Value of `model_type` in the model's config.json."""
    is_decoder: bool = False
    is_instruct: bool = False
    """Whether the model has a chat template."""
    is_sentence_model: bool = False
    """Whether the model is stored in the format of the sentence-transformers library."""
    parameters: int | None = None
    """Number of parameters; None if it is not known."""
    is_detector: bool = False
    """Whether the model has a head that detects replaced tokens, and no language-model head."""


@dataclass(frozen=True)
class Evidence:
    """All measurements that the rules of advice use.

    The field of a text, such as `general`, is None if no such text is configured.
    """

    tasks: list[TaskEvidence]
    corpus: TextEvidence | None = None
    general: TextEvidence | None = None
    pool: TextEvidence | None = None
    """Measurements of unlabelled text of the same kind as the task's text (tapt.pool_paths)."""
    candidates: TextEvidence | None = None
    """Measurements of the pool from which documents may be selected (select.pool_paths)."""
    way: str = "packed"
    """How documents are put into rows for the model: several in one row (`packed`, `shared rows`), or one per row,
    either `padded` or `by length` (all rows of a pass have the same length)."""
    has_head: bool = True
    """Whether the model has a language-model head. Without a head, losses are measured with a head of random
    weights."""
    overlap: float | None = None
    """Share of the most frequent words that the corpus and general text have in common, in samples of equal size."""

    def blocks(self, record: Record) -> list[Block]:
        """Returns the tables of texts and tasks, and the share of words common to the corpus and general text."""
        texts = {
            "corpus": self.corpus,
            "general": self.general,
            "pool": self.pool,
            "pool to select from": self.candidates,
        }
        rows = [[name, *text.cells()] for name, text in texts.items() if text]
        header = ["text", "size", "tokens", "sampled documents", "tokens per word", "model loss [nats per token]"]
        note = "Tokens per word and model loss are measured on the sampled documents, before training."
        blocks: list[Block] = [Table(header, rows, "Texts", note)] if rows else []
        if self.overlap is not None:
            common = f"Corpus and general text share {self.overlap:.1%} of their most frequent words."
            blocks.append(TextBlock(common))
        if self.tasks:
            header = [
                "task",
                "train examples",
                "classes",
                "examples of rarest class",
                "test texts also in train",
                *header[-2:],
                "frequent words shared with",
            ]
            blocks.append(Table(header, [task.cells() for task in self.tasks], "Tasks"))
        return blocks


def millions(number: float | None, unit: str) -> str:
    """Formats a number in millions, such as `1.2 MB`, and None as `not known`."""
    return "not known" if number is None else f"{number / 1e6:,.1f} {unit}"


PER_EXAMPLE, PASSES = 50, 10
MOST_WORK = 0.5
"""Maximum training compute of all passes over a selection, as a share of the compute of one pass over the pool."""
KIND = "classifier"
"""Kind of selection that is proposed if none is configured. The kind `classifier` reads the pool twice and runs no
language model."""


@dataclass(frozen=True)
class ProposedSelection:
    """The size of a selection from a pool, and the number of passes over it. A size is None if it is not known."""

    kind: str
    documents: int | None
    tokens: int | None
    budget: str
    """Option that sets the proposed budget, such as `select.tokens=1000`; empty if a budget is configured."""
    passes: int = PASSES


def propose(config: Config, evidence: Evidence) -> ProposedSelection | None:
    """Proposes the size of a selection; returns None if there is no pool or no task, or if the pool is too small.

    Args:
        config: the job's configuration. A configured budget is used, and so is a `select.kind` other than `random`.
        evidence: sizes of the pool and of the tasks.
    """
    select, pool = config.select, evidence.candidates
    if pool is None or not evidence.tasks:
        return None
    kind = KIND if select.kind == "random" else " -> ".join(_names(select.kind))
    examples = sum(task.examples for task in evidence.tasks)
    wanted = select.documents or (select.per_example or PER_EXAMPLE) * examples
    is_given = bool(select.documents or select.per_example or select.tokens)
    if pool.documents is None or pool.tokens is None:
        return ProposedSelection(kind, wanted, None, "" if is_given else f"select.per_example={PER_EXAMPLE}")
    length = pool.tokens / max(pool.documents, 1)
    if select.tokens:
        return ProposedSelection(kind, ceil(select.tokens / length), select.tokens, "")
    if is_given:
        return ProposedSelection(kind, wanted, round(wanted * length), "")
    documents = min(wanted, int(MOST_WORK / PASSES * pool.documents))
    if documents < examples:
        return None
    tokens = round(documents * length)
    return ProposedSelection(kind, documents, tokens, f"select.tokens={tokens}")


def _names(kind: object) -> list[str]:
    """Returns the names of one selection or of a list of selections."""
    entries = kind if isinstance(kind, list) else [kind]
    return [str(next(iter(entry)) if isinstance(entry, dict) else entry) for entry in entries]


AS_IT_IS, TAPT, SELECTED, DAPT, BOTH = "fine-tuning", "TAPT", "TAPT on a selection", "DAPT", "DAPT+TAPT"
"""Names of the recipes. If there are tasks, each recipe ends with fine-tuning."""
TAPT_EPOCHS = TAPT_LENGTH["training.epochs"]
"""Number of passes over the task's text (Don't Stop Pretraining, section 4; the default of dontstop tapt)."""


@dataclass(frozen=True)
class CostAhead:
    """The estimated cost of a recipe.

    A value is None if the size of a text, the dimensions of the model or the speed of the devices is not known.
    """

    tokens: int | None
    flops: float | None = None
    device_hours: float | None = None
    price: float | None = None
    """Price of the recipe, in the currency of resources.price_per_device_hour."""


@dataclass(frozen=True)
class Costs:
    """The costs of all recipes that can be run."""

    recipes: dict[str, CostAhead]
    rate_from: str = ""
    """Text that says where the assumed device speed comes from. Device-hours are computed with this speed."""
    refusal: str = ""
    """Message of the error that training with this configuration would raise; empty if there would be no error."""
    whole_pool: CostAhead | None = None
    """The cost of one pass over the pool from which a part may be selected, without fine-tuning."""
    dapt_tokens: int | None = None
    """Number of tokens that DAPT trains on; None if no corpus is configured or the length of training is not known."""

    def selection_share(self) -> float | None:
        """Returns the FLOPs of TAPT on a selection as a share of the FLOPs of one pass over the whole pool.

        Fine-tuning is not counted.
        """
        without, own = (self.recipes[name].flops if name in self.recipes else None for name in (AS_IT_IS, SELECTED))
        if without is None or own is None or self.whole_pool is None or not self.whole_pool.flops:
            return None
        return (own - without) / self.whole_pool.flops

    def share(self, recipe: str, other: str) -> float | None:
        """Returns the FLOPs of one recipe as a share of the FLOPs of another recipe, both without fine-tuning."""
        without, own, reference = (
            self.recipes[name].flops if name in self.recipes else 0.0 for name in (AS_IT_IS, recipe, other)
        )
        if without is None or not own or not reference or reference <= without:
            return None
        return (own - without) / (reference - without)


def costs(config: Config, evidence: Evidence, dimensions: ModelSize | None, store: Store) -> Costs:
    """Estimates the costs of the jobs with this configuration. Early stopping of fine-tuning is not considered.

    Args:
        config: the job's configuration.
        evidence: the sizes of the texts and tasks.
        dimensions: the dimensions of the model, if they are known.
        store: the store with the records of earlier training runs, from which the speed of devices is read.
    """
    made_of: dict[str, list[CostAhead]] = {}
    fine_tuning = [_fine_tuning(config.finetune, evidence.tasks, dimensions)] if evidence.tasks else []
    if fine_tuning:
        tapt = _tapt(config, evidence, dimensions)
        made_of |= {AS_IT_IS: fine_tuning, TAPT: [tapt, *fine_tuning]}
    if proposed := propose(config, evidence):
        made_of[SELECTED] = [_selected(config, evidence, proposed, dimensions), *fine_tuning]
    if evidence.corpus:
        dapt = _dapt(config, evidence, dimensions)
        made_of |= {DAPT: [dapt, *fine_tuning], **({BOTH: [dapt, tapt, *fine_tuning]} if fine_tuning else {})}
    rate, rate_from, refusal = None, "", ""
    if dimensions:
        ahead = forecast(config, dimensions, 1, None, store)
        rate, rate_from, refusal = ahead.rate, ahead.rate_from, ahead.refusal
    price = config.resources.price_per_device_hour
    recipes = {name: _sum(parts, rate, price) for name, parts in made_of.items()}
    whole = None
    if text := evidence.candidates:
        length = text.tokens / text.documents if text.tokens and text.documents else None
        whole = _sum([_training(config, text.tokens, length, dimensions)], rate, price)
    return Costs(recipes, rate_from, refusal, whole, dapt.tokens if evidence.corpus else None)


def is_limited(training: TrainingConfig) -> bool:
    """Returns whether a training length is configured.

    If no length is configured, costs and recommended commands assume one pass over the text.
    """
    return any((training.max_steps, training.max_tokens, training.max_flops, training.epochs))


def _sum(parts: Sequence[CostAhead], rate: float | None, price: float | None) -> CostAhead:
    tokens = [part.tokens for part in parts if part.tokens is not None]
    flops = [part.flops for part in parts if part.flops is not None]
    known = sum(flops) if len(flops) == len(parts) else None
    hours = known / rate / 3600 if known is not None and rate else None
    return CostAhead(
        sum(tokens) if len(tokens) == len(parts) else None,
        known,
        hours,
        None if hours is None or price is None else hours * price,
    )


def _fine_tuning(finetune: FinetuneConfig, tasks: Sequence[TaskEvidence], dimensions: ModelSize | None) -> CostAhead:
    """Returns the cost of fine-tuning on all tasks with all seeds.

    The language-model head is not counted, because fine-tuning does not use it. If the encoder is frozen, each example
    is counted once, because its features are computed only once.
    """
    trains = finetune.mode in ("fine_tune", "lora")
    tokens, flops = 0, 0.0
    for task in tasks:
        seen = task.tokens * (finetune.epochs_of(task.examples) * len(finetune.seeds) if trains else 1)
        tokens += seen
        if dimensions:
            work = Workload(min(task.tokens / task.examples, finetune.max_length), predicted=0.0)
            flops += seen * (training_flops if trains else forward_flops)(dimensions, work)
    return CostAhead(tokens, flops if dimensions else None)


def _tapt(config: Config, evidence: Evidence, dimensions: ModelSize | None) -> CostAhead:
    """Returns the cost of TAPT on the text of all tasks, and on TAPT's pool if a pool is configured."""
    tokens, examples = (sum(getattr(task, name) for task in evidence.tasks) for name in ("tokens", "examples"))
    pool = 0 if evidence.pool is None else evidence.pool.tokens
    return _training(config, None if pool is None else TAPT_EPOCHS * (tokens + pool), tokens / examples, dimensions)


def _selected(
    config: Config, evidence: Evidence, proposed: ProposedSelection, dimensions: ModelSize | None
) -> CostAhead:
    """Returns the cost of training on the tasks' text and on the selected documents, without the selection itself."""
    tokens, examples = (sum(getattr(task, name) for task in evidence.tasks) for name in ("tokens", "examples"))
    if proposed.tokens is None or proposed.documents is None:
        return _training(config, None, None, dimensions)
    length = (tokens + proposed.tokens) / (examples + proposed.documents)
    return _training(config, proposed.passes * (tokens + proposed.tokens), length, dimensions)


def _dapt(config: Config, evidence: Evidence, dimensions: ModelSize | None) -> CostAhead:
    """Returns the cost of training on the corpus for the configured length, or for one pass if no length is set."""
    training, corpus = config.training, evidence.corpus
    tokens, documents = (corpus.tokens, corpus.documents) if corpus else (None, None)
    if not is_limited(training):
        training = replace(training, epochs=1.0)
    if tokens is None and training.epochs:
        return _training(config, None, None, dimensions)
    length = tokens / documents if tokens and documents else None
    if training.max_flops and dimensions is None:
        return CostAhead(None)
    training = with_flops_as_steps(replace(config, training=training), dimensions, length).training
    trained = sys.maxsize if tokens is None else max(1, round(tokens * (1 - config.corpus.heldout_fraction)))
    steps = length_of(training, ceil(trained / training.sequence_length)).steps
    return _training(config, steps * training.global_batch_size * training.sequence_length, length, dimensions)


def _training(config: Config, tokens: int | None, length: float | None, dimensions: ModelSize | None) -> CostAhead:
    if tokens is None or dimensions is None:
        return CostAhead(tokens)
    work = workload(config.objective, config.training.sequence_length, length, method_of(config).added_passes())
    return CostAhead(tokens, tokens * training_flops(dimensions, work, config.training.gradient_checkpointing))
