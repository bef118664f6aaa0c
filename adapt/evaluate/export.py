"""Stage `export`: the trained model as a folder to hand over, with a card that says what it gained and lost."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adapt.config import Config, CorpusConfig, what
from adapt.corpus.sources import sources_of
from adapt.evaluate.measure import EXAMPLES_FILE, read_losses
from adapt.evaluate.statistics import Estimate, change, mean_loss
from adapt.model.card import model_card
from adapt.redact import redacted
from adapt.runner import Outcome, Record
from adapt.runner.files import storage_errors, write_atomically
from adapt.train.job import MODEL_FOLDER

CORPORA = {"domain": "heldout", "general": "general"}
"""Corpora that are measured, and how their metrics are called."""


def export(config: Config, folder: Path, inputs: Mapping[str, Record]) -> Outcome:
    """Writes the model folder and its card.

    Args:
        config: of the job.
        folder: the stage's folder; becomes a Hugging Face folder.
        inputs: the corpora `domain` and perhaps `general`, `training`, and the evaluations `before` and `after`.

    Returns:
        Metrics: held-out losses before and after with their change and 95% intervals, how many of the held-out
        documents were trained on, and the cost of training.
    """
    training = inputs["training"]
    results = [
        comparison(name, inputs["before"].path, inputs["after"].path, config.evaluation.bootstrap_samples)
        for name in CORPORA
        if name in inputs and inputs["after"].metrics[f"{name}_documents"] > 1
    ]
    _link(training.path / MODEL_FOLDER, folder)
    write_atomically(folder / "README.md", model_card(redacted(_facts(config, inputs, results))))
    overlap = {f"{prefix}_overlap": inputs["after"].metrics.get(f"{name}_overlap") for name, prefix in CORPORA.items()}
    found = {name: number for name, number in overlap.items() if name != "general_overlap" or "general" in inputs}
    return Outcome({**_loss_metrics(results), **found, **training.metrics}, training.cost, training.resources)


def comparison(corpus: str, before: Path, after: Path, samples: int) -> dict[str, Any]:
    """Held-out loss of a corpus before and after, on the same documents and masks, with 95% intervals."""
    old, counts = read_losses(before, corpus)
    new, _ = read_losses(after, corpus)
    return {
        "text": corpus,
        "predictions": int(counts.sum()),
        **_named("before", mean_loss(old, counts, samples)),
        **_named("after", mean_loss(new, counts, samples)),
        **_named("change", change(old, new, counts, samples)),
    }


def _named(name: str, estimate: Estimate) -> dict[str, float | None]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _loss_metrics(results: list[dict[str, Any]]) -> dict[str, float | None]:
    metrics: dict[str, float | None] = {"heldout_loss_before": None, "heldout_loss_after": None}
    for result in results:
        prefix = CORPORA[result["text"]]
        metrics.update(
            {f"{prefix}_loss_{key}": value for key, value in result.items() if key not in ("text", "predictions")}
        )
    return metrics


def _link(source: Path, folder: Path) -> None:
    """The model's files without a second copy where the file system allows it."""
    with storage_errors(folder):
        for file in source.iterdir():
            target = folder / file.name
            target.unlink(missing_ok=True)
            try:
                os.link(file, target)
            except OSError:
                shutil.copy2(file, target)


def _facts(config: Config, inputs: Mapping[str, Record], results: list[dict[str, Any]]) -> dict[str, Any]:
    corpus, training = inputs.get("text", inputs["domain"]), inputs["training"]
    source = _tasks(config) if "text" in inputs else _source(config.corpus)
    return {
        "name": config.name,
        "base_model": config.model.path,
        "objective": config.objective.kind,
        "corpus": {
            "source": source,
            "documents": corpus.metrics.get("train_documents"),  # not counted where the corpus is streamed
            "tokens": corpus.metrics.get("train_tokens"),
            "digest": corpus.inputs["manifest"]["key"] if "manifest" in corpus.inputs else corpus.key,
        },
        "training": {
            **{name: value for name, value in what(config.training).items() if value is not None},
            **{f"objective.{name}": value for name, value in asdict(config.objective).items()},
            "seed": config.seed,
            "steps": training.metrics["steps"],
            "tokens": training.metrics["tokens"],
            **_method(config, training),
            **training.resources,
            **_price(training),
        },
        "results": results,
        "lineage": [{"stage": r.stage, "key": r.key, "path": str(r.path)} for r in inputs.values()],
        "packages": training.packages,
    }


def _tasks(config: Config) -> str:
    """The text of TAPT."""
    names = ", ".join(task.name for task in (config.task, *config.tasks))
    splits = "all splits (transductive)" if config.tapt.transductive else "the train split"
    drawn = config.tapt.random_per_example
    part = f"{drawn} random documents an example" if drawn else "all"
    return f"text of {splits} of {names}, without labels" + (
        f", and {part} of a pool" if config.tapt.pool_paths else ""
    )


def _source(corpus: CorpusConfig) -> str:
    """Where the text came from."""
    if corpus.sources:
        return "; ".join(f"{name}: {_source(each)}" for name, each in sources_of(corpus))
    if corpus.source == "files":
        paths = [corpus.paths] if isinstance(corpus.paths, str) else corpus.paths
        return ", ".join(paths)
    return corpus.source if corpus.source == "docstrings" else f"dataset {corpus.dataset}"


def _method(config: Config, training: Record) -> dict[str, Any]:
    """Against forgetting, and the model that was not to forget, where it is not base_model."""
    before = {"began with the model of": training.inputs["(start)"]["path"]} if "(start)" in training.inputs else {}
    if config.method.kind == "plain":
        return before
    return {
        **before,
        "method": config.method.kind,
        **{f"das.{key}": value for key, value in asdict(config.das).items()},
    }


def _price(training: Record) -> dict[str, str]:
    """What the training took, as far as it is known."""
    hours, cost, mfu = training.cost.get("device_hours"), training.cost.get("cost"), training.metrics.get("mfu")
    return {
        **({"device-hours": f"{hours:.3g}"} if hours is not None else {}),
        **({"cost": f"{cost:,.2f}"} if cost is not None else {}),
        **({"model FLOPs utilization": f"{mfu:.1%}"} if mfu is not None else {}),
    }


def examples(record: Record) -> list[dict[str, Any]]:
    """For an export's record: the held-out sentences with their filled masks before and after, side by side."""
    before, after = (
        json.loads((Path(record.inputs[name]["path"]) / EXAMPLES_FILE).read_text()) for name in ("before", "after")
    )
    return [
        {"text": old["text"], "answer": old["answer"], "before": old["guesses"], "after": new["guesses"]}
        for old, new in zip(before, after, strict=True)
    ]
