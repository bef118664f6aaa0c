"""Makes tables of pre-training (text, length, losses, cost, gain), and tables and maps of selected text."""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from adapt.evaluate.measurements import MEASURES, NOT_MEASURED, LossChange, MeasureChange
from adapt.runner.record import Record
from adapt.show.blocks import (
    NONE,
    Block,
    Cell,
    Figures,
    FindingBlock,
    Findings,
    Folded,
    Table,
    worded_interval,
)
from adapt.show.drawing import canvas, color, style, svg
from adapt.show.report.study import Entry, Study, upstream
from adapt.show.report.study_results import Results
from adapt.show.report.task_comparison import Compared, Trainings, finetuning_hours, gain, hours, nats, span
from adapt.stage import export_model, select_documents, training_result


def exports_of(study: Study) -> list[Entry]:
    """Lists the exports of a study. Each pre-training run has one export."""
    return [entry for entry in study.entries if isinstance(entry.result, export_model.Adapted)]


MOST_VERDICTS = 8
"""Maximum number of training runs that the verdict describes. The table of training runs lists all of them."""


def training_verdicts(study: Study) -> list[FindingBlock]:
    """Makes a finding per training run: whether the model is better than its start model, and the losses.

    If there are several training runs, a finding with their counts comes first.
    """
    measured = [entry for entry in exports_of(study) if entry.result.losses]
    return [*_counted(measured), *(_finding(entry) for entry in measured[:MOST_VERDICTS])]


def trainings_in_short(study: Study) -> list[FindingBlock]:
    """Counts the training runs that made models better and worse, and makes a finding per run with a worse model."""
    measured = [entry for entry in exports_of(study) if entry.result.losses]
    worse = [finding for finding in map(_finding, measured) if finding.tone == "worse"]
    return [*_counted(measured), *worse[:MOST_VERDICTS]]


def _own_text(entry: Entry) -> str:
    return "its tasks' text" if "text" in entry.record.inputs else "its domain"


def _finding(entry: Entry) -> FindingBlock:
    name, retrieval = _own_text(entry), entry.result.retrieval
    verdict = entry.result.verdict(name)
    losses = [of.sentence(name) for of in entry.result.losses.values()]
    choice = [entry.result.choice.sentence()] if entry.result.choice else []
    text = " ".join([f"{verdict.clauses()}.", *([retrieval.sentence()] if retrieval else []), *losses, *choice])
    return FindingBlock(entry.label, text[0].upper() + text[1:], verdict.tone)


def _counted(measured: Sequence[Entry]) -> list[FindingBlock]:
    """Counts the training runs that made models better and worse. The list is empty for fewer than two runs."""
    if len(measured) < 2:
        return []
    tones = [entry.result.verdict().tone for entry in measured]
    general = sum("general text" in entry.result.verdict().on("worse") for entry in measured)
    parts = [f"{tones.count('better')} of {len(measured)} models are better than their start model on their own text"]
    parts += [f"{tones.count('worse')} worse"] if "worse" in tones else []
    parts += [f"{general} worse on general text"] if general else []
    tone = "worse" if "worse" in tones else "better" if set(tones) == {"better"} else "open"
    return [FindingBlock("Trainings", f"{', '.join(parts)}, beyond chance.", tone)]


def pretraining(study: Study) -> Table:
    """Makes a table with a row per trained model: text, length, held-out losses and cost."""
    losses = ["loss on its domain", "loss on general text", "bits per byte"]
    has_goodput = any(entry.result.goodput is not None for entry in exports_of(study))
    goodput = ["goodput"] if has_goodput else []
    header = ["model", "text", "steps", "tokens", *losses, "device time", *goodput]
    rows: list[list[Cell | str]] = [
        [
            entry.label,
            _corpus(study, entry.record),
            f"{entry.result.steps:,}",
            short_count(entry.result.tokens),
            _loss(entry.result.losses.get("domain")),
            _loss(entry.result.losses.get("general")),
            _per_byte(entry.result.losses.get("domain")),
            hours(entry.record.cost.get("device_hours")),
            *([_goodput(entry.result)] if has_goodput else []),
        ]
        for entry in exports_of(study)
    ]
    note = (
        "Loss on held-out text in nats per predicted token, before → after the training. Below it is the change with "
        "its 95% interval over documents, which does not include variation between training runs. Lower is better. "
        "Bits per byte of the domain's text also compare models with different tokenizers."
    )
    if any("domain" not in entry.result.losses for entry in exports_of(study)):
        note += f" If the loss on its domain is missing, {NOT_MEASURED}."
    if has_goodput:
        note += (
            " Goodput: time of the steps that the final model contains, divided by the time for which the devices were"
            " held. Below it are the largest losses of time, by cause."
        )
    return Table(header, rows, "Pre-training", note)


def _goodput(of: export_model.Adapted) -> Cell:
    """Returns a cell with the useful share of the held device time, and the three largest causes of lost time."""
    held = training_result.held_time_of(of)
    return Cell(f"{held.goodput:.1%}", held.losses(most=3)) if held else Cell(NONE)


def _corpus(study: Study, record: Record) -> Cell:
    """Returns a cell that names the training text: the task's text if there is a task, otherwise the domain's text."""
    text = upstream(record, "text") or upstream(record, "domain")
    if text is None:
        return Cell(NONE)
    documents = text.metrics.get("train_documents")
    return Cell(study.name_of(text), small=f"{documents:,} documents" if documents else "")


def dropped_texts(study: Study) -> list[Block]:
    """Makes a table of the documents that were dropped from each training text, by reason."""
    rows: dict[str, list[Cell | str]] = {}
    for entry in exports_of(study):
        if entry.result.dropped:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in entry.result.dropped.items())
            text = _corpus(study, entry.record)
            rows[text.text] = [text, f"{sum(entry.result.dropped.values()):,}", reasons]
    note = (
        "Documents are dropped before training by cleaning, as duplicates, or if they share text with evaluation sets."
    )
    return [Table(["text", "dropped", "by reason"], list(rows.values()), "Dropped documents", note)] if rows else []


ISOTROPY = {"mean_cosine": "mean cosine", "isoscore": "IsoScore"}
"""Names of the measures of isotropy in the table of retrieval, keyed by field."""


def retrieval_on_pairs(study: Study) -> list[Block]:
    """Makes a table of retrieval on the user's pairs with each trained model, before and after training."""
    rows: list[list[Cell | str]] = [
        [
            entry.label,
            *(_measure(of.measures.get(name)) for name in MEASURES),
            *(_ends(getattr(of.before, name), getattr(of.after, name)) for name in ISOTROPY),
            Cell(f"{of.after.queries:,}", f"{of.after.documents:,} documents"),
        ]
        for entry in exports_of(study)
        if (of := entry.result.retrieval)
    ]
    header = ["model", *MEASURES.values(), *ISOTROPY.values(), "queries"]
    note = (
        "Before → after the training. The change has a 95% interval over queries, which does not include variation"
        " between training runs; higher is better. Isotropy: if the vectors use all directions, the mean cosine of two"
        " documents is low and IsoScore is high."
    )
    return [Table(header, rows, "Retrieval on pairs", note)] if rows else []


def _measure(of: MeasureChange | None) -> Cell:
    """Formats a measure of retrieval before and after training, with the interval of the change."""
    if of is None:
        return Cell(NONE)
    return Cell(_ends(of.before.value, of.after.value), of.change.text("+.3f"))


def _ends(before: float | None, after: float | None) -> str:
    return NONE if before is None or after is None else f"{before:.3f} → {after:.3f}"


def standard_evaluations(study: Study) -> list[Block]:
    """Makes a table of the scores of each trained model on standard tasks, before and after training."""
    rows: list[list[Cell | str]] = []
    for entry in exports_of(study):
        of = entry.result.benchmarks
        for row in of.rows if of else ():
            change, leaked = row.judged(of.models[-1]), "" if row.leaked is None else f"{row.leaked:,} leaked"
            before, after = (f"{row.scores[model].value:.3f}" for model in (of.models[0], of.models[-1]))
            cell = change.cell("+.3f") if change else Cell(NONE)
            rows.append(
                [entry.label, row.task, row.metric, Cell(f"{row.items:,}", leaked), f"{before} → {after}", cell]
            )
    header = ["model", "task", "metric", "items", "score", "change"]
    note = (
        "Before → after the training. The change and its 95% interval over items leave out items that are in the"
        " training text. The interval does not include variation between training runs."
    )
    return [Table(header, rows, "Standard evaluations", note)] if rows else []


def _loss(of: LossChange | None) -> Cell:
    if of is None:
        return Cell(NONE)
    ends = worded_interval(of.change.low, of.change.high, nats)
    change = nats(of.change.value) + (f" ({ends})" if ends else "")
    return Cell(f"{of.before.value:.2f} → {of.after.value:.2f}", f"{change}; {of.of}" if of.of else change)


def _per_byte(of: LossChange | None) -> str:
    """Formats the bits per byte of the domain's text before and after training."""
    if of is None or of.bits_per_byte_before is None or of.bits_per_byte_after is None:
        return NONE
    return f"{of.bits_per_byte_before:.3f} → {of.bits_per_byte_after:.3f}"


def short_count(value: float | None) -> str:
    """Formats a large number in short form, such as 1.2 K for 1,234."""
    if value is None:
        return NONE
    digits = float(f"{value:.3g}")  # rounds first, because rounding may reach the next unit: 999,600 is 1 M
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if digits >= size:
            return f"{digits / size:g} {unit}"
    return f"{value:.0f}"


def training_costs(results: Results, compared: Compared, trainings: Trainings) -> Table:
    """Makes a table of each recipe's cost for all tasks, and the recipe's mean gain."""
    rows: list[list[Cell | str]] = []
    for recipe in results.recipes:
        price = trainings.of_recipe(results, recipe)
        tuned = [finetuning_hours(row.groups[recipe]) for row in results.rows if recipe in row.groups]
        known = [spent for spent in tuned if spent is not None]
        average, changes = compared.average.get(recipe), trainings.general_changes(results, recipe)
        rows.append(
            [
                results.label(recipe),
                hours(price.device_hours),
                NONE if price.money is None else f"{price.money:,.2f}",
                hours(sum(known) if len(known) == len(tuned) else None),
                gain(average) if average else NONE,
                span(changes) if changes else NONE,
            ]
        )
    header = [
        "recipe",
        "pre-training time",
        "pre-training cost",
        "fine-tuning time",
        "mean gain [points of 100]",
        "loss change on general text [nats per token]",
    ]
    note = (
        "Device time for all tasks and seeds together; a training that several tasks share is counted once. "
        "A training that continues the steps of another training (schedule wsd) counts only its own steps."
    )
    return Table(header, rows, "Cost and gain", note)


OPEN, MOST = 3, 12
"""Number of maps that are shown unfolded, and maximum number of maps on the page. Each map takes about 130 KB."""


def selection_blocks(entries: Sequence[Entry]) -> list[Block]:
    """Makes a table of all selections, a map per selection, and a table of documents to read.

    Args:
        entries: entries with a stage of kind `selection`. A stage that occurs in several entries is shown once.
    """
    entries = list({entry.record.key: entry for entry in reversed(entries)}.values())[::-1]
    if not entries:
        return []
    judged: dict[str, select_documents.Nearness] = {}
    for entry in entries:
        judged[entry.label] = entry.result.selection
        if entry.result.random:
            judged[f"{entry.label}, random"] = entry.result.random
        judged[f"{entry.label}, target"] = entry.result.target
    chosen = [entry for entry in entries if entry.result.random][:MOST]
    maps = [drawn for entry in chosen if (drawn := selection_map(entry.label, entry.record))]
    read = [table for entry in entries if (table := select_documents.example_table(entry.label, entry.record.path))]
    warned = [FindingBlock(entry.label, line, "warning") for entry in entries for line in entry.result.markup]
    return [
        *([Findings(warned)] if warned else []),
        select_documents.nearness_table(judged),
        *maps[:OPEN],
        *([Folded("More maps", maps[OPEN:])] if maps[OPEN:] else []),
        Folded("Selected documents to read", read),
    ]


MAP_FILE = "map.json"
POOL, TARGET = "pool", "target"
SERIES = {POOL: 0, TARGET: 2, "selection": 1, "random": 4}
MARKERS = {POOL: ("o", 2.5, 0.5), TARGET: ("^", 4.0, 0.8)}
"""Markers of the documents of the pool and of the target: symbol, size [points] and opacity."""
OTHERS = ("o", 4.0, 0.8)
WIDTH, HEIGHT, ROOM = 4.8, 4.2, 0.04
NOTE = (
    "Similar texts lie close together. Distances between groups and their sizes mean little (t-SNE of "
    "TF-IDF in 50 dimensions, 200 random texts of each set)."
)


def selection_map(label: str, record: Record) -> Figures | None:
    """Draws the selected and the random documents on maps with the same axes. Returns None if there is no map.

    Args:
        label: label of the selection.
        record: record of the stage `selection`.
    """
    try:
        places: dict[str, Sequence[Sequence[float]]] = json.loads((record.path / MAP_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not places:
        return None
    drawn = [name for name in ("selection", "random") if name in places]
    of_random = f"{label}: random documents with as many tokens, on the same map."
    captions = {"selection": f"{label}. {NOTE}", "random": of_random}
    drawings = [(_drawing(f"{label}-map-{name}", places, name), captions[name]) for name in drawn]
    return Figures(drawings, [(name, SERIES[name]) for name in (POOL, TARGET, *drawn)])


def _drawing(name: str, places: Mapping[str, Sequence[Sequence[float]]], shown: str) -> str:
    """Draws the pool, the target and one further set of documents, on axes that have room for all sets."""
    every = np.concatenate([np.reshape(points, (-1, 2)) for points in places.values()])
    low, high = every.min(0), every.max(0)
    room = ROOM * (high - low)
    with style():
        figure, axes = canvas(WIDTH, HEIGHT)
        for each in (POOL, TARGET, shown):
            points = np.reshape(places[each], (-1, 2))
            marker, size, opacity = MARKERS.get(each, OTHERS)
            axes.plot(
                *points.T,
                marker,
                color=color(SERIES[each]),
                markersize=size,
                alpha=opacity,
                markeredgewidth=0,
            )
        axes.set(xlim=(low[0] - room[0], high[0] + room[0]), ylim=(low[1] - room[1], high[1] + room[1]))
        axes.set(xticks=[], yticks=[])
        return svg(figure, name)
