"""Stage `export`: the deliverable of an adaptation, and what it gained and lost on held-out text."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.evaluate.measurements import NOT_MEASURED, LossChange, Text
from adapt.runner import NOTHING, Done, Outcome, Stage
from adapt.runner.record import OneModel, Record
from adapt.show.blocks import TRANSDUCTIVE, Block, Cell, Figures, FindingBlock, Findings, Table, TextBlock, formatted
from adapt.show.drawing import METRICS_LINES, loss_curve
from adapt.stage.model_evaluation import Evaluate
from adapt.stage.prepare_text import Prepare, Prepared
from adapt.stage.train import Train, Trained
from adapt.terminal.console import duration


@dataclass(frozen=True)
class Adapted(Trained, OneModel):
    """An adapted model: what its training took, and the loss on held-out text before and after it."""

    losses: dict[Text, LossChange] = field(default_factory=dict)
    """Losses on each text; texts with fewer than two held-out documents are missing."""
    text_faults: list[str] = field(default_factory=list)
    """Where the tokenizer reads the text that was trained on badly: what it does, and what to do about it."""

    def blocks(self, record: Record) -> list[Block]:
        """Losses before and after, guesses of hidden words, what the training took, and where the model is."""
        faults = [FindingBlock("warning", fault, "warning") for fault in self.text_faults]
        return [
            *self._losses(record.name),
            *([Findings(faults)] if faults else []),
            *_guesses(record),
            *_curve(record),
            TextBlock(self._cost(record)),
            TextBlock(f"model: {record.path}"),
        ]

    def _losses(self, name: str) -> list[Block]:
        names = {"domain": "domain, held out", "general": "general"}
        rows: list[list[Cell | str]] = [
            [names[text], of.before.cell(".3f"), of.after.cell(".3f"), of.change.cell("+.3f"), *_per_byte(of)]
            for text, of in self.losses.items()
        ]
        missing: list[Block] = [] if "domain" in self.losses else [TextBlock(f"loss on the domain: {NOT_MEASURED}")]
        if not rows:
            return missing
        title = f"{name}: loss on held-out text{TRANSDUCTIVE if self.transductive else ''}"
        note = "Nats per predicted token with 95% intervals over documents; lower is better."
        return [Table(["text", "before", "after", "change", "per byte before", "after"], rows, title, note), *missing]

    def _cost(self, record: Record) -> str:
        cost = record.cost.get("cost")
        parts = [
            f"{self.steps} steps",
            f"{self.tokens:,} tokens",
            f"{self.tokens_per_s:,.0f} tokens/s",
            f"data wait {self.data_wait_share:.1%}",
            f"{duration(self.device_seconds)} of device time",
            *([f"MFU {self.mfu:.0%}"] if self.mfu is not None else []),
            *([f"at most {self.peak_memory_bytes / 2**30:.1f} GiB per device"] if self.peak_memory_bytes else []),
            *([f"cost {cost:,.2f}"] if cost is not None else []),
        ]
        return ", ".join(parts)


def _per_byte(of: LossChange) -> list[str]:
    return [formatted(value, "{:.4f}") for value in (of.per_byte_before, of.per_byte_after)]


def _curve(record: Record) -> list[Block]:
    """The loss of the training, step by step."""
    made = record.inputs.get("training")
    drawing = loss_curve(Path(made["path"]) / METRICS_LINES, record.key[:12], "Training loss") if made else None
    return [Figures([drawing])] if drawing else []


def _guesses(record: Record) -> list[Block]:
    """Held-out sentences with one hidden word, and the model's first guesses before and after."""
    before, after = (_examples(record, name) for name in ("before", "after"))
    if not before:
        return []
    rows: list[list[Cell | str]] = [
        [old["text"], old["answer"], _guess(old), _guess(new)] for old, new in zip(before, after, strict=True)
    ]
    title = "Held-out sentences with one word hidden, and the model's first guesses"
    return [Table(["sentence", "word", "before", "after"], rows, title, "Bold: the word is among them.", words=True)]


def _examples(record: Record, evaluation: str) -> list[dict[str, Any]]:
    file = Path(record.inputs[evaluation]["path"]) / "examples.json"
    return list(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else []


def _guess(example: Mapping[str, Any]) -> Cell:
    words = [word for word, _ in example["guesses"]]
    return Cell(", ".join(words), strong=example["answer"] in words)


@dataclass(frozen=True, eq=False)
class Export(Stage[Adapted]):
    """The trained model as a Hugging Face folder, with a card."""

    kind = "export"
    version = 2  # losses by text, each with its intervals
    takes = NOTHING

    name: str
    config: Config
    domain: Stage[Prepared]
    """The text that losses are measured on; also the text that was trained on, if `text` is None."""
    general: Prepare | None
    text: Stage[Prepared] | None
    """What TAPT trained on."""
    training: Train
    """After all text, so that what can fail on the data fails before it."""
    before: Evaluate
    after: Evaluate
    is_transductive: bool
    """Whether the text of dev and test is among it."""

    def what(self) -> Mapping[str, Any]:
        """How intervals are found, and what the card says of the text."""
        transductive = {"transductive": True} if self.is_transductive else {}
        return {"bootstrap_samples": self.config.evaluation.bootstrap_samples, **transductive}

    def run(self, folder: Path, done: Done) -> Outcome[Adapted]:
        """Links the model's files and writes the card."""
        from adapt.evaluate.export_card import Handover, hand_over, loss_changes

        training, before, after = done[self.training], done[self.before], done[self.after]
        old, new = (before.path, before.result.texts), (after.path, after.result.texts)
        changes = loss_changes(old, new, self.config.evaluation.bootstrap_samples)
        parts = (self.domain, self.general, self.text, self.training, self.before, self.after)
        handover = Handover(
            config=self.config,
            training=training.record,
            text=done[self.text or self.domain].record,
            is_of_tasks=self.text is not None,
            is_transductive=self.is_transductive,
            changes=changes,
            made_of=[done.records[stage.key] for stage in parts if stage],
        )
        hand_over(handover, folder)
        legibility = done[self.text or self.domain].result.legibility
        result = Adapted(
            **vars(training.result),
            losses={change.text: change for change in changes},
            text_faults=legibility.faults() if legibility else [],
        )
        return Outcome(result, training.record.cost, training.record.resources)
