"""Stage `export`: the deliverable of an adaptation, and what it gained and lost on held-out text."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config
from adapt.corpus.shared import FEWEST_DOCUMENTS
from adapt.runner import Done, Outcome, Stage
from adapt.stage.evaluate import Evaluate
from adapt.stage.text.prepare import Prepare, Prepared
from adapt.stage.train import Train, Trained

if TYPE_CHECKING:
    from adapt.model.card import LossChange

PREFIXES = {"domain": "heldout", "general": "general"}
"""Texts that the model is measured on, and how the fields of `Exported` call them."""


@dataclass(frozen=True)
class Exported(Trained):
    """What the training came to, and loss on held-out text [nats a predicted token] before and after it.

    `low` and `high` are 95% intervals over documents. None stands for what was not measured, or on too few documents.
    """

    heldout_loss_before: float | None = None
    heldout_loss_before_low: float | None = None
    heldout_loss_before_high: float | None = None
    heldout_loss_after: float | None = None
    heldout_loss_after_low: float | None = None
    heldout_loss_after_high: float | None = None
    heldout_loss_change: float | None = None
    heldout_loss_change_low: float | None = None
    heldout_loss_change_high: float | None = None
    general_loss_before: float | None = None
    general_loss_before_low: float | None = None
    general_loss_before_high: float | None = None
    general_loss_after: float | None = None
    general_loss_after_low: float | None = None
    general_loss_after_high: float | None = None
    general_loss_change: float | None = None
    general_loss_change_low: float | None = None
    general_loss_change_high: float | None = None
    heldout_loss_per_byte_before: float | None = None
    """Nats a byte of text, which models with other tokens can be compared by."""
    heldout_loss_per_byte_after: float | None = None
    general_loss_per_byte_before: float | None = None
    general_loss_per_byte_after: float | None = None
    heldout_overlap: int | None = None
    """Held-out documents that were trained on; None: not known."""
    general_overlap: int | None = None


@dataclass(frozen=True, eq=False)
class Export(Stage[Exported]):
    """The trained model as a Hugging Face folder, with a card."""

    kind = "export"

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

    def needs(self) -> Mapping[str, float]:
        """It takes nothing of the cluster."""
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[Exported]:
        """Links the model's files and writes the card."""
        from adapt.evaluate.export import Handover, hand_over

        training, changes, after = done[self.training], self._changes(done), done[self.after].result.texts
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
        overlap = {f"{PREFIXES[name]}_overlap": text.overlap for name, text in after.items()}
        figures: dict[str, Any] = {**vars(training.result), **_losses(changes), **overlap}
        return Outcome(Exported(**figures), training.record.cost, training.record.resources)

    def _changes(self, done: Done) -> list["LossChange"]:
        """Changes of loss, on the texts with enough documents."""
        from adapt.evaluate.export import loss_change

        samples, before, after = self.config.evaluation.bootstrap_samples, done[self.before], done[self.after]
        return [
            replace(
                loss_change(name, before.path, after.path, samples),
                per_byte_before=before.result.texts[name].loss_per_byte,
                per_byte_after=text.loss_per_byte,
            )
            for name, text in after.result.texts.items()
            if text.documents >= FEWEST_DOCUMENTS
        ]


def _losses(changes: list["LossChange"]) -> dict[str, float | None]:
    """The figures under the names that `Exported` has for them."""
    measured = [f"{name}{end}" for name in ("before", "after", "change") for end in ("", "_low", "_high")]
    names = [*measured, "per_byte_before", "per_byte_after"]
    return {f"{PREFIXES[each.text]}_loss_{name}": getattr(each, name) for each in changes for name in names}
