"""The trained model as a folder to hand over, with a card that says what it gained and lost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adapt.config import Config, CorpusConfig, section_of, what
from adapt.corpus.files.sources import sources_of
from adapt.corpus.shards.legible import Legibility, read_legibility
from adapt.evaluate.card import CardFacts, model_card
from adapt.evaluate.measure import read_losses
from adapt.evaluate.results import LossChange, Text
from adapt.evaluate.statistics import change, mean_loss
from adapt.model.additions.config import stored_additions
from adapt.model.start import MODEL_FOLDER
from adapt.redact import redact, redacted
from adapt.runner import Record
from adapt.runner.files import link_or_copy, storage_errors, write_atomically


@dataclass(frozen=True)
class Handover:
    """What is known of a model that is handed over."""

    config: Config
    training: Record
    text: Record
    """The record of the stage that holds the text that the model was trained on."""
    is_of_tasks: bool
    """Whether that is the text of tasks, and not that of the corpus."""
    is_transductive: bool
    """Whether the text of dev and test is among it."""
    changes: Sequence[LossChange]
    made_of: Sequence[Record]
    """The stages that it was made by."""


def hand_over(handover: Handover, folder: Path) -> None:
    """Makes a folder a Hugging Face folder with the model and its card."""
    _link(handover.training.path / MODEL_FOLDER, folder)
    write_atomically(folder / "README.md", model_card(_facts(handover)))


def loss_change(text: Text, before: Path, after: Path, samples: int) -> LossChange:
    """Held-out loss of a text before and after, on the same documents and masks, with 95% intervals.

    Args:
        text: its name in the evaluations.
        before: the folder of an evaluation.
        after: that of another on the same text.
        samples: bootstrap resamples.
    """
    old, counts = read_losses(before, text)
    new, _ = read_losses(after, text)
    return LossChange(
        text=text,
        predictions=int(counts.sum()),
        before=mean_loss(old, counts, samples),
        after=mean_loss(new, counts, samples),
        change=change(old, new, counts, samples),
    )


def _link(source: Path, folder: Path) -> None:
    """Links the model's files into the folder; copies them where the file system cannot link."""
    with storage_errors(folder):
        for file in source.iterdir():
            link_or_copy(file, folder / file.name)


def _facts(handover: Handover) -> CardFacts:
    config, training, text = handover.config, handover.training, handover.text
    legibility = read_legibility(text.metrics)
    corpus = {
        "source": _tasks(handover) if handover.is_of_tasks else _source(config.corpus),
        "documents": text.metrics.get("train_documents"),  # not counted where the corpus is streamed
        "tokens": text.metrics.get("train_tokens"),
        **_words(legibility),
        "digest": text.inputs["files.listing"]["key"] if "files.listing" in text.inputs else text.key,
    }
    entries = stored_additions(training.path / MODEL_FOLDER)
    settings = {
        **{name: value for name, value in what(config.training).items() if value is not None},
        **{f"objective.{name}": value for name, value in asdict(config.objective).items()},
        "seed": config.seed,
        "steps": training.metrics["steps"],
        "tokens": training.metrics["tokens"],
        **_method(config, training),
        **training.resources,
        **_price(training),
    }
    return CardFacts(
        name=config.name,
        base_model=redact(config.model.path),
        objective=config.objective.kind,
        corpus=redacted(corpus),
        training=redacted(settings),
        results=handover.changes,
        remarks=legibility.faults() if legibility else (),
        lineage=[(stage.stage, stage.key, redact(str(stage.path))) for stage in handover.made_of],
        packages=training.packages,
        additions=[entry["kind"] for entry in entries if entry["kind"] != "domains"],
        domains=[name for entry in entries if entry["kind"] == "domains" for name in entry["names"]],
    )


def _words(legibility: Legibility | None) -> dict[str, str]:
    """How the tokenizer breaks the words of the text, as far as that was measured."""
    if legibility is None:
        return {}
    unknown, pieces = legibility.unknown_share, legibility.pieces_per_word
    return {
        **({"unknown words": f"{unknown:.1%}"} if unknown is not None else {}),
        **({"pieces per word": f"{pieces:.2f}"} if pieces is not None else {}),
    }


def _tasks(handover: Handover) -> str:
    """Describes the text that TAPT trained on."""
    config, is_transductive = handover.config, handover.is_transductive
    names = ", ".join(task.name for task in (config.task, *config.tasks))
    splits = "all splits (transductive)" if is_transductive else "the train split"
    pool = ", and all of a pool" if config.tapt.pool_paths else ""
    selected = ", and documents selected of a pool" if "corpora.(selection)" in handover.training.inputs else ""
    return f"text of {splits} of {names}, without labels{pool}{selected}"


def _source(corpus: CorpusConfig) -> str:
    """Describes where the text of a corpus came from."""
    if corpus.sources:
        return "; ".join(f"{name}: {_source(source)}" for name, source in sources_of(corpus))
    if corpus.source == "files":
        paths = [corpus.paths] if isinstance(corpus.paths, str) else corpus.paths
        return ", ".join(paths) or "documents selected of a pool"
    return corpus.source if corpus.source == "docstrings" else f"dataset {corpus.dataset}"


def _method(config: Config, training: Record) -> dict[str, Any]:
    """Names the method and its options, and the model that training began with if that is not base_model."""
    start, kind, options = training.inputs.get("start.training"), config.method.kind, config.method_options
    before = {"began with the model of": start["path"]} if start else {}
    if kind == "plain":
        return before
    chosen = asdict(options) if options is not None else {}
    return {**before, "method": kind, **{f"{section_of(kind)}.{name}": value for name, value in chosen.items()}}


def _price(training: Record) -> dict[str, str]:
    """What the training took, as far as it is known."""
    hours, cost, mfu = training.cost.get("device_hours"), training.cost.get("cost"), training.metrics.get("mfu")
    return {
        **({"device-hours": f"{hours:.3g}"} if hours is not None else {}),
        **({"cost": f"{cost:,.2f}"} if cost is not None else {}),
        **({"model FLOPs utilization": f"{mfu:.1%}"} if mfu is not None else {}),
    }
