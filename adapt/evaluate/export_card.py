"""Exports a model as a folder for the Hugging Face Hub with a model card (README.md).

The card says what the model is, how to load it, how the adaptation changed its losses, and how to reproduce it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from adapt.config import Config, CorpusConfig, section_of, what
from adapt.corpus.corpora import FEWEST_DOCUMENTS, dropped_documents
from adapt.corpus.files.manifest import sources_of
from adapt.corpus.text_profile import Legibility, read_legibility, read_profile
from adapt.evaluate import compared_models, measurements, verdict
from adapt.evaluate.card_metadata import card_head, languages
from adapt.evaluate.measure_model import change, mean_loss, read_losses, read_text_losses
from adapt.model.additions.table import stored_additions
from adapt.model.model_card import LOADING_DETECTOR, LOADING_TURNED, card_code, card_text, loading_code, settings, table
from adapt.model.sentence_vectors import SentenceVectors, write_sentence_vectors
from adapt.model.start import MODEL_FOLDER
from adapt.objective.table import RTD, objective_options
from adapt.runner import Record
from adapt.runner.files import link_or_copy, storage_errors, write_atomically
from adapt.show.renderers import markdown_table
from adapt.support.redact import redact, redacted
from adapt.train.phases import REPLACED, PhaseFigures


@dataclass(frozen=True)
class Handover:
    """The configuration, records and measurements of a model that is exported."""

    config: Config
    training: Record
    text: Record
    """The record of the stage that prepared the training text."""
    is_of_tasks: bool
    """Whether the training text consists of the texts of tasks. If not, the training text is the corpus."""
    is_transductive: bool
    """Whether the training text includes the text of the dev and test splits."""
    changes: Sequence[measurements.LossChange]
    made_of: Sequence[Record]
    """The records of all stages that produced the model."""
    vectors: SentenceVectors | None = None
    """How sentence-transformers computes sentence vectors. None if the folder is not for sentence vectors."""
    retrieval: measurements.RetrievalChange | None = None
    """Retrieval before and after the training. None if it was not measured."""
    phases: Sequence[PhaseFigures] = ()
    """The phases of the training. Empty for a run without phases."""
    choice: verdict.ChosenStep | None = None
    """The step whose model was chosen (`training.keep: best`). None if no step was chosen."""
    examples: Sequence[str] = ()
    """Markdown that shows how to use the model with the libraries in `export.kinds`."""
    benchmarks: compared_models.BenchmarksCompared | None = None
    """Scores on standard tasks before and after the training. None if no task is configured."""
    new_head: bool = False
    """Whether the training began with a random language-model head."""
    new_layers: int = 0
    """Number of top layers with random weights when the training began."""


def write_model(model: Path, vectors: SentenceVectors | None, folder: Path) -> None:
    """Writes a model into a folder that transformers and, if `vectors` is given, sentence-transformers can load."""
    _link(model, folder)
    if vectors:
        write_sentence_vectors(vectors, folder)


def write_card(handover: Handover, folder: Path) -> None:
    """Writes the model card."""
    write_atomically(folder / "README.md", model_card(_facts(handover)))


Evaluation = tuple[Path, Mapping[str, measurements.TextLoss]]
"""The folder of an evaluation, and the evaluation's result on each text."""


def loss_changes(
    before: Evaluation,
    after: Evaluation,
    samples: int,
    of: str = "",
    chose: Mapping[str, tuple[int, float | None]] | None = None,
) -> list[measurements.LossChange]:
    """Returns the change of the held-out loss with its 95% interval, for each text with enough documents.

    Args:
        before: the evaluation of the model before training.
        after: the evaluation of the model after training, on the same documents and masks.
        samples: number of bootstrap resamples.
        of: what the model does instead of predicting tokens, such as replaced-token detection; empty if it predicts
            tokens.
        chose: number of documents that were used to choose the model, and the model's loss on them, keyed by text. They
            are the first documents of the sample, and are left out of the result.
    """
    changes = []
    for text in get_args(measurements.Text):
        new = after[1].get(text)
        first, chosen_loss = (chose or {}).get(text, (0, None))
        if new is None or new.documents - first < FEWEST_DOCUMENTS:
            continue
        (old_losses, counts), (losses, _) = (
            [column[first:] for column in read_losses(folder, text)] for folder, _ in (before, after)
        )
        bits = [_bits_per_byte(folder, text, first, texts[text]) for folder, texts in (before, after)]
        changes.append(
            measurements.LossChange(
                text=text,
                predictions=int(counts.sum()),
                before=mean_loss(old_losses, counts, samples),
                after=mean_loss(losses, counts, samples),
                change=change(old_losses, losses, counts, samples),
                bits_per_byte_before=bits[0],
                bits_per_byte_after=bits[1],
                overlap=new.overlap,
                of=of,
                figures_before=before[1][text].figures,
                figures_after=new.figures,
                chose=chosen_loss,
                documents=new.documents - first,
            )
        )
    return changes


def _bits_per_byte(folder: Path, text: str, first: int, whole: measurements.TextLoss) -> float | None:
    """Returns the loss [bits per byte] without the first `first` documents; None if the text lengths are unknown."""
    if not first or whole.bits_per_byte is None or (losses := read_text_losses(folder, text)) is None:
        return whole.bits_per_byte
    return float(losses[first:].per_byte())


def _link(source: Path, folder: Path) -> None:
    """Links the model's files into the folder, or copies them if the file system does not support links."""
    with storage_errors(folder):
        for file in source.rglob("*"):
            if file.is_file():
                target = folder / file.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(file, target)


NEW_HEAD = (
    "The base model has no language-model head. A new one was trained from random weights, so the loss before training"
    " is that of a random head"
)


def _facts(handover: Handover) -> "CardFacts":
    config, training, text = handover.config, handover.training, handover.text
    legibility, profile = read_legibility(text.metrics), read_profile(text.metrics)
    corpus = {
        "source": _tasks(handover) if handover.is_of_tasks else _source(config.corpus),
        "documents": text.metrics.get("train_documents"),  # None if the corpus is streamed
        **_dropped(text.metrics),
        "tokens": text.metrics.get("train_tokens"),
        **_words(legibility),
        **({"text": profile.summary()} if profile else {}),
        "digest": text.inputs["files.listing"]["key"] if "files.listing" in text.inputs else text.key,
    }
    entries = stored_additions(training.path / MODEL_FOLDER)
    is_chosen = config.training.keep == "best"
    left_out = {"phases", *(REPLACED if handover.phases else ()), *(() if is_chosen else ("keep", "keep_metric"))}
    settings = {
        **{name: value for name, value in what(config.training).items() if value is not None and name not in left_out},
        **({"stop": [asdict(rule) for rule in config.training.rules]} if config.training.rules else {}),
        **{f"phase {number}": phase.sentence() for number, phase in enumerate(handover.phases, start=1)},
        **{f"objective.{name}": value for name, value in asdict(config.objective).items()},
        **_objective_options(config),
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
        remarks=[
            *(legibility.faults() if legibility else ()),
            *(profile.faults(config.corpus.deduplicate) if profile else ()),
            *_random_parts(handover),
        ],
        lineage=[(stage.stage, stage.key, redact(str(stage.path))) for stage in handover.made_of],
        packages=training.packages,
        additions=[entry["kind"] for entry in entries if entry["kind"] != "domains"],
        domains=[name for entry in entries if entry["kind"] == "domains" for name in entry["names"]],
        vectors=handover.vectors,
        retrieval=handover.retrieval,
        choice=handover.choice,
        examples=handover.examples,
        benchmarks=handover.benchmarks,
        metadata={name: value for name, value in _metadata(config).items() if value},
    )


def _metadata(config: Config) -> dict[str, Any]:
    """Returns licence, language and datasets, keyed by their field names in the card's metadata header."""
    export, corpus = config.export, config.corpus
    datasets = [source.dataset for _, source in sources_of(corpus) if source.dataset]
    return {"license": export.license, "language": languages(export), "datasets": [*dict.fromkeys(datasets)]}


def _objective_options(config: Config) -> dict[str, Any]:
    """Returns the options of the objective, by dotted name."""
    options = objective_options(config)
    section = section_of(config.objective.kind)
    return {} if options is None else {f"{section}.{name}": value for name, value in asdict(options).items()}


def _random_parts(handover: Handover) -> list[str]:
    """Says which parts of the model began with random weights."""
    top, seed = handover.new_layers, handover.config.seed
    said = (
        f"The weights of the top {top} layers were replaced with random weights before training"
        f" (model.reinitialize_top, seed {seed}), so the loss before training is that of a model with random"
        " layers"
    )
    return [*([NEW_HEAD] if handover.new_head else []), *([said] if top else [])]


def _dropped(prepared: Mapping[str, Any]) -> dict[str, str]:
    """Returns the number of dropped documents of the training text, in total and by reason, for the model card."""
    kept = sum(prepared.get(name) or 0 for name in ("train_documents", "heldout_documents"))
    text = dropped_documents(kept, prepared.get("dropped") or {})
    return {"dropped": text} if text else {}


def _words(legibility: Legibility | None) -> dict[str, str]:
    """Returns the share of unknown words and the tokens per word of the training text, if they were measured."""
    if legibility is None:
        return {}
    unknown, pieces = legibility.unknown_share, legibility.pieces_per_word
    return {
        **({"unknown words": f"{unknown:.1%}"} if unknown is not None else {}),
        **({"tokens per word": f"{pieces:.2f}"} if pieces is not None else {}),
    }


def _tasks(handover: Handover) -> str:
    """Describes the training text of TAPT for the model card."""
    config, is_transductive = handover.config, handover.is_transductive
    names = ", ".join(task.name for task in (config.task, *config.tasks))
    splits = "all splits (transductive)" if is_transductive else "the train split"
    pool = ", and all documents of a pool" if config.tapt.pool_paths else ""
    selected = ", and documents selected from a pool" if "corpora.(selection)" in handover.training.inputs else ""
    return f"text of {splits} of {names}, without labels{pool}{selected}"


def _source(corpus: CorpusConfig) -> str:
    """Describes the source of a corpus's text for the model card."""
    if corpus.sources:
        return "; ".join(f"{name}: {_source(source)}" for name, source in sources_of(corpus))
    if corpus.source == "files":
        paths = [corpus.paths] if isinstance(corpus.paths, str) else corpus.paths
        return ", ".join(paths) or "documents selected from a pool"
    return corpus.source if corpus.source == "docstrings" else f"dataset {corpus.dataset}"


def _method(config: Config, training: Record) -> dict[str, Any]:
    """Returns the method with its options. Also names the earlier model that the training run started from, if any."""
    start, kind, options = training.inputs.get("start.training"), config.method.kind, config.method_options
    before = {"started from the model in": start["path"]} if start else {}
    if kind == "plain":
        return before
    chosen = asdict(options) if options is not None else {}
    return {**before, "method": kind, **{f"{section_of(kind)}.{name}": value for name, value in chosen.items()}}


def _price(training: Record) -> dict[str, str]:
    """Returns device-hours, cost and utilization of the training, if they are known."""
    hours, cost, mfu = training.cost.get("device_hours"), training.cost.get("cost"), training.metrics.get("mfu")
    return {
        **({"device-hours": f"{hours:.3g}"} if hours is not None else {}),
        **({"cost": f"{cost:,.2f}"} if cost is not None else {}),
        **({"model FLOPs utilization": f"{mfu:.1%}"} if mfu is not None else {}),
    }


CARD = """\
---
{front}
---

# {name}

{base_model} adapted to a domain by {objective}. {verdict}

## What it was adapted on

{corpus}

## How to load it

{loading}

## Results

{results}

## Training settings

{training}

## Lineage

Every stage has a key, a hash of what determines its result. The same key means the same result.

{lineage}

## Package versions

{packages}
"""

OBJECTIVES = {
    "mlm": "masked language modelling",
    "whole_word": "masked language modelling of whole words",
    "entity": "masked language modelling of entities and whole words",
    "span": "masked language modelling of spans",
    "difference": "masked language modelling, more often of words that are rare in general text (arXiv 2305.14577)",
    "mntp": "masked next-token prediction with bidirectional attention (arXiv 2404.05961)",
    "causal": "causal language modelling",
    "tsdae": "reconstructing sentences from their vectors (TSDAE, arXiv 2104.06979)",
    "causal_detour": "next-token prediction with causal attention (arXiv 2605.12438)",
    RTD: "replaced-token detection",
}


@dataclass(frozen=True)
class CardFacts:
    """The content of a model card."""

    name: str
    base_model: str
    objective: str
    """Name of the training objective, such as `mlm`."""
    corpus: Mapping[str, Any]
    """Source, size and digest of the training text."""
    training: Mapping[str, Any]
    """Settings, resources and cost of the training."""
    results: Sequence[measurements.LossChange]
    lineage: Sequence[tuple[str, str, str]]
    """Kind, key and folder of each stage that produced the model."""
    packages: Mapping[str, str]
    """Versions of packages, keyed by name."""
    additions: Sequence[str] = ()
    """Kinds of modules that were added to the model's architecture, such as adapters."""
    remarks: Sequence[str] = ()
    """Warnings about the training text."""
    domains: Sequence[str] = ()
    """Names of the domains for which the model has separate parameters, in the order of training."""
    vectors: SentenceVectors | None = None
    """How sentence-transformers computes sentence vectors. None if the folder is not for sentence vectors."""
    retrieval: measurements.RetrievalChange | None = None
    """Retrieval before and after the training. None if it was not measured."""
    choice: verdict.ChosenStep | None = None
    """The step whose model was chosen (`training.keep: best`). None if no step was chosen."""
    examples: Sequence[str] = ()
    """Markdown that shows how to use the model with further libraries."""
    benchmarks: compared_models.BenchmarksCompared | None = None
    """Scores on standard tasks before and after the training."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Licence, language and datasets, keyed by field of the card's YAML metadata."""


def model_card(facts: CardFacts) -> str:
    """Writes the text of the model card.

    Returns:
        Markdown that begins with YAML metadata for the Hugging Face Hub. The metadata name a licence only if the owner
        has chosen one (export.license), because the licence depends on the base model and on the text.
    """
    causal, detects, vectors = facts.objective == "causal", facts.objective == RTD, facts.vectors
    is_turned = facts.objective == "mntp"
    task, library = "text-generation" if causal else "feature-extraction" if is_turned else "fill-mask", "transformers"
    if detects:
        task = "feature-extraction"
    if vectors:
        task, library = "sentence-similarity", "sentence-transformers"
    with_causal_head = causal or (is_turned and not facts.additions)
    loading = loading_code(with_causal_head, facts.additions, facts.domains, vectors)
    if detects or (is_turned and not (facts.additions or vectors)):
        loading = LOADING_DETECTOR if detects else LOADING_TURNED
    return CARD.format(
        front=card_head(
            *(facts.name, facts.base_model, task, library, facts.results, facts.retrieval, facts.metadata),
            facts.benchmarks,
        ),
        loading="\n\n".join([loading, *facts.examples]),
        name=card_text(facts.name),
        base_model=card_code(facts.base_model),
        objective=OBJECTIVES.get(facts.objective, facts.objective),
        verdict=" ".join(
            [
                *([facts.retrieval.sentence()] if facts.retrieval else []),
                card_verdict(facts.results),
                *([facts.choice.sentence()] if facts.choice else []),
            ]
        ),
        corpus="\n\n".join([settings(facts.corpus), *(f"**Note:** {card_text(remark)}." for remark in facts.remarks)]),
        results="\n\n".join(
            [results_table(facts.results), *_retrieval(facts.retrieval), *_benchmarks(facts.benchmarks)]
        ),
        training=settings(facts.training),
        lineage=table(("stage", "key", "path"), facts.lineage),
        packages=settings(facts.packages),
    )


def card_verdict(results: Sequence[measurements.LossChange]) -> str:
    """Returns a sentence for each text that says whether the loss fell or rose, or that the interval includes 0."""
    if not results:
        return f"Its effect was not measured: {measurements.NOT_MEASURED}."
    return " ".join(row.sentence("the domain") for row in results)


def results_table(results: Sequence[measurements.LossChange]) -> str:
    """Returns a table with a row per text: losses and bits per byte before and after training."""
    if not results:
        return f"Not measured: {measurements.NOT_MEASURED}."
    has_domain = any(row.text == "domain" for row in results)
    missing = "" if has_domain else f"\n\nThe loss on the domain was not measured: {measurements.NOT_MEASURED}."
    return (
        markdown_table(measurements.loss_table(results, "domain", "Loss on held-out text [nats per token]")) + missing
    )


def _retrieval(of: measurements.RetrievalChange | None) -> list[str]:
    """Returns the card's lines on retrieval. Empty if retrieval was not measured."""
    return [] if of is None else ["### Retrieval", markdown_table(of.table())]


def _benchmarks(of: compared_models.BenchmarksCompared | None) -> list[str]:
    """Returns the card's lines on standard tasks. Empty if none was measured."""
    return [] if of is None else ["### Standard evaluations", markdown_table(replace(of.table(""), title=""))]
