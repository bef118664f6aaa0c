"""Stage `export` writes the adapted model, and compares its losses on held-out text before and after training."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.corpus.corpora import dropped_documents
from adapt.evaluate.measurements import NOT_MEASURED, LossChange, RetrievalChange, Text, bits_of_earlier
from adapt.model.additions.table import stored_additions
from adapt.model.sentence_vectors import SentenceVectors, vectors_what
from adapt.model.start import MODEL_FOLDER
from adapt.runner import NOTHING, Done, Outcome, Stage
from adapt.runner.record import OneModel, Record
from adapt.show.blocks import (
    TRANSDUCTIVE,
    Block,
    Cell,
    Figures,
    FindingBlock,
    Findings,
    Table,
    TextBlock,
    formatted,
    summary,
)
from adapt.show.drawing import METRICS_LINES, loss_curve
from adapt.stage.model_evaluation import Evaluate, MeasureRetrieval
from adapt.stage.prepare_text import Prepare, Prepared
from adapt.stage.train import Train, Trained
from adapt.terminal.console import duration, log


@dataclass(frozen=True)
class Adapted(Trained, OneModel):
    """Result of an export: the cost of the training, and losses on held-out text before and after training."""

    losses: dict[Text, LossChange] = field(default_factory=dict)
    """Losses on each measured text, before and after training. A text with fewer than two held-out documents has no
    entry."""
    text_faults: list[str] = field(default_factory=list)
    """Problems of the tokenizer with the training text. Each entry also says what to do."""
    documents: int | None = None
    """Number of documents of the training text after cleaning, including held-out ones. None if it was streamed."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Number of documents dropped from the training text, keyed by reason."""
    pooling: str = ""
    """Pooling with which sentence-transformers loads the folder. Empty if the folder is not for sentence vectors."""
    retrieval: RetrievalChange | None = None
    """Retrieval with the model's sentence vectors before and after training. None without `retrieval.pairs`."""

    def blocks(self, record: Record) -> list[Block]:
        """Shows whether the losses fell or rose, the losses, guesses of hidden words, the cost, and the model."""
        faults = [FindingBlock("warning", fault, "warning") for fault in self.text_faults]
        name = "your tasks' text" if "text" in record.inputs else "your domain"
        retrieval = [self.retrieval] if self.retrieval else []
        said = [of.sentence() for of in retrieval] + [of.sentence(name) for of in self.losses.values()]
        dropped = dropped_documents(self.documents or 0, self.dropped)
        missing = "" if "domain" in self.losses else f"The loss on {name} was not measured: {NOT_MEASURED}."
        return [
            *summary(missing, *said),
            *(Table(of.HEADER, of.rows(), f"{record.name}: retrieval", of.note()) for of in retrieval),
            *self._losses(record.name, name),
            *([Findings(faults)] if faults else []),
            *_guesses(record),
            *_curve(record),
            *([TextBlock(f"Training text: {dropped}.")] if dropped else []),
            TextBlock(self._cost(record)),
            TextBlock(f"Model: {record.path}"),
            *([TextBlock(f"sentence-transformers loads it with {self.pooling} pooling.")] if self.pooling else []),
        ]

    @classmethod
    def of_earlier(cls, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Converts the metrics of a record of an earlier version, whose losses per byte are in nats."""
        return {**metrics, "losses": {text: bits_of_earlier(of) for text, of in metrics.get("losses", {}).items()}}

    def _losses(self, name: str, domain: str) -> list[Block]:
        names = {"domain": domain, "general": "general text"}
        rows: list[list[Cell | str]] = [
            [names[text], of.before.cell(".3f"), of.after.cell(".3f"), of.change.cell("+.3f"), *_per_byte(of)]
            for text, of in self.losses.items()
        ]
        title = f"{name}: loss on held-out text [nats per token]{TRANSDUCTIVE if self.transductive else ''}"
        note = (
            "Mean over predicted tokens, with 95% intervals over documents; lower is better. Bits per byte of text also"
            " compare models with different tokenizers."
        )
        header = ["text", "loss before", "loss after", "change", "bits per byte before", "bits per byte after"]
        return [Table(header, rows, title, note)]

    def _cost(self, record: Record) -> str:
        cost = record.cost.get("cost")
        parts = [
            f"{self.steps:,} steps",
            f"{self.tokens:,} tokens",
            f"{self.tokens_per_s:,.0f} tokens per second",
            f"{self.data_wait_share:.1%} of the time waiting for data",
            f"{duration(self.device_seconds)} of device time",
            *([f"{self.mfu:.0%} of the device's peak FLOPs"] if self.mfu is not None else []),
            *([f"peak memory {self.peak_memory_bytes / 2**30:.1f} GiB per device"] if self.peak_memory_bytes else []),
            *([f"cost {cost:,.2f}"] if cost is not None else []),
        ]
        return f"Training: {', '.join(parts)}."


def _per_byte(of: LossChange) -> list[str]:
    return [formatted(value, "{:.3f}") for value in (of.bits_per_byte_before, of.bits_per_byte_after)]


def _curve(record: Record) -> list[Block]:
    """Draws the training loss by step."""
    made = record.inputs.get("training")
    drawing = loss_curve(Path(made["path"]) / METRICS_LINES, record.key[:12], "Training loss") if made else None
    return [Figures([drawing])] if drawing else []


def _guesses(record: Record) -> list[Block]:
    """Makes the table of held-out sentences with one hidden word and the model's guesses before and after."""
    before, after = (_examples(record, name) for name in ("before", "after"))
    if not before:
        return []
    rows: list[list[Cell | str]] = [
        [old["text"], old["answer"], _guess(old), _guess(new)] for old, new in zip(before, after, strict=True)
    ]
    title = "Held-out sentences with one hidden word, and the model's best guesses for it"
    header = ["sentence", "hidden word", "guesses before", "guesses after"]
    note = f"{HIT} marks guesses that contain the hidden word."
    return [Table(header, rows, title, note, words=True)]


HIT = "\N{CHECK MARK}"
"""Mark of guesses that contain the hidden word."""


def _examples(record: Record, evaluation: str) -> list[dict[str, Any]]:
    file = Path(record.inputs[evaluation]["path"]) / "examples.json"
    return list(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else []


def _guess(example: Mapping[str, Any]) -> Cell:
    words = [word for word, _ in example["guesses"]]
    is_hit = example["answer"] in words
    return Cell(", ".join(words), mark=f" {HIT}" if is_hit else "", strong=is_hit)


@dataclass(frozen=True, eq=False)
class Export(Stage[Adapted]):
    """Writes the trained model as a Hugging Face folder with a model card."""

    kind = "export"
    version = 2  # since version 2, records have the losses of each text with intervals
    takes = NOTHING

    name: str
    config: Config
    domain: Stage[Prepared]
    """Prepared text on whose held-out documents losses are measured. The model was also trained on it if `text` is
    None."""
    general: Prepare | None
    text: Stage[Prepared] | None
    """Text of tasks that TAPT trained on. None if the model was trained on `domain`."""
    training: Train
    """Training that made the model. The field follows all texts, so that problems of the data show before the training
    runs."""
    before: Evaluate
    after: Evaluate
    is_transductive: bool
    """Whether the model was trained on the text of the dev and test splits."""
    vectors: SentenceVectors | None = None
    """How sentence-transformers makes sentence vectors. None if the folder is not for sentence vectors."""
    retrieved: Mapping[str, MeasureRetrieval] = field(default_factory=dict)
    """Retrieval `before` and `after` the training. Empty without `retrieval.pairs`."""

    def what(self) -> Mapping[str, Any]:
        """Returns how intervals are computed, whether the text is transductive, and how sentence vectors are made."""
        transductive = {"transductive": True} if self.is_transductive else {}
        samples = {"bootstrap_samples": self.config.evaluation.bootstrap_samples}
        return {**samples, **transductive, **vectors_what(self.vectors)}

    def run(self, folder: Path, done: Done) -> Outcome[Adapted]:
        """Links the model's files, compares the losses, and writes the card."""
        from adapt.evaluate.export_card import Handover, hand_over, loss_changes
        from adapt.evaluate.retrieval import retrieval_change

        training, before, after = done[self.training], done[self.before], done[self.after]
        old, new = (before.path, before.result.texts), (after.path, after.result.texts)
        changes = loss_changes(old, new, self.config.evaluation.bootstrap_samples)
        measured = {label: done[stage] for label, stage in self.retrieved.items()}
        samples = self.config.evaluation.bootstrap_samples
        retrieval = retrieval_change(measured["before"], measured["after"], samples) if measured else None
        vectors = self._kept(training.path / MODEL_FOLDER)
        parts = (self.domain, self.general, self.text, self.training, self.before, self.after, *self.retrieved.values())
        handover = Handover(
            config=self.config,
            training=training.record,
            text=done[self.text or self.domain].record,
            is_of_tasks=self.text is not None,
            is_transductive=self.is_transductive,
            changes=changes,
            made_of=[done.records[stage.key] for stage in parts if stage],
            vectors=vectors,
            retrieval=retrieval,
        )
        hand_over(handover, folder)
        text = done[self.text or self.domain].result
        legibility = text.legibility
        result = Adapted(
            **vars(training.result),
            losses={change.text: change for change in changes},
            text_faults=legibility.faults() if legibility else [],
            documents=None if text.train_documents is None else text.train_documents + text.heldout_documents,
            dropped=text.dropped or {},
            pooling=vectors.pooling if vectors else "",
            retrieval=retrieval,
        )
        return Outcome(result, training.record.cost, training.record.resources)

    def _kept(self, model: Path) -> SentenceVectors | None:
        """Returns how to make sentence vectors.

        If export.sentence_transformers is not set, a model with adapters or other added modules is not exported for
        sentence vectors, because sentence-transformers would ignore these modules.
        """
        kinds = [entry["kind"] for entry in stored_additions(model)] if self.vectors else []
        if kinds and self.config.export.sentence_transformers is None:
            log(f"export: no files for sentence-transformers, which would ignore {', '.join(kinds)} of the model")
            return None
        return self.vectors
