"""Writes the report of a study as HTML and Markdown, with warnings about scores. The verdict is the first section."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adapt.runner.files import write_shared
from adapt.runner.record import Record
from adapt.show.blocks import (
    METRICS,
    NONE,
    Block,
    Cell,
    Figures,
    FindingBlock,
    Findings,
    Folded,
    Section,
    Table,
    TextBlock,
    shown_by,
)
from adapt.show.renderers import render_html, render_markdown
from adapt.show.report import look_texts, pareto_front, task_tables, trainings
from adapt.show.report.searches import search_blocks, search_verdicts
from adapt.show.report.sequence_runs import MEASURES, Sequences, sequences_of
from adapt.show.report.sequence_section import front_verdict, sequence_verdicts, sequence_warnings
from adapt.show.report.sequence_section import section as sequences_section
from adapt.show.report.study import HTML, Study, draw_lineage, lineage
from adapt.show.report.study_results import Results, Row, collect, searches_of
from adapt.show.report.task_comparison import Compared, Trainings, compare_all, verdicts
from adapt.show.report.tradeoffs import ComparableModels, tradeoff_section, tradeoff_verdicts, tradeoffs
from adapt.stage.select_documents import SelectionJudged
from adapt.stage.training_result import measured_blocks, skipped_steps
from adapt.statistics.comparison import points

COMPARED = ("export", "finetune", "sequence", "selection", "search", "confirm")
"""Kinds of stages that the sections with comparisons show, so that the section on other stages leaves them out."""
KEY = 12
"""Number of characters of a stage's key that the report shows."""


def sections(study: Study, results: Results) -> list[Section]:
    """Builds all sections of the report. Sections without content are left out."""
    compared, priced, in_turn = compare_all(results), Trainings(study), sequences_of(study)
    traded = tradeoffs(study, pareto_front.FEWEST)
    planned = [
        Section("Verdict", _verdict(study, results, compared, priced, in_turn, traded)),
        Section("What was run", _ran(study, results)),
        Section("Sequences of domains", sequences_section(in_turn)),
        Section("Gain against forgetting", tradeoff_section(traded)),
        Section("Searches for good values", search_blocks(searches_of(study))),
        Section("Scores", _scores(results, compared)),
        Section("Cost and gain", _costs(results, compared, priced)),
        Section("Learning curves", _curves(study, results)),
        Section("Selected text", _selections(study)),
        Section("Other results", _others(study, traded)),
        Section("Best recipes in detail", _details(results)),
        Section("Warnings", _warnings(study, results, in_turn)),
        Section("Lineage", _lineage(study)),
        Section("How to reproduce", _reproduce(study)),
    ]
    return [section for section in planned if section.blocks]


def _legend(results: Results, recipes: Sequence[str]) -> list[tuple[str, int]]:
    return [(results.label(recipe), results.recipes.index(recipe)) for recipe in recipes]


def _verdict(
    study: Study,
    results: Results,
    compared: Compared,
    priced: Trainings,
    in_turn: Sequences,
    traded: Sequence[ComparableModels],
) -> list[Block]:
    findings = [*tradeoff_verdicts(traded, study.margin.nats), *front_verdict(in_turn), *sequence_verdicts(in_turn)]
    searched = search_verdicts(searches_of(study))
    trained = trainings.trainings_in_short(study) if results.rows or findings else trainings.training_verdicts(study)
    if results.rows or not (findings or searched or trained):
        findings = [*findings, *verdicts(results, compared, priced)]
    findings = [*findings, *trained]
    findings = [*findings, *searched]
    blocks: list[Block] = [Findings(findings)]
    if study.looks is not None:
        return [*blocks, *_looks(study)]
    if drawings := task_tables.difference_figures(results, compared):
        text = (
            "Difference from the baseline with 95% intervals. Hollow points may be due to chance: their"
            " Holm-corrected p is .05 or more."
        )
        blocks += [Figures(drawings), TextBlock(text)]
    return blocks


def _looks(study: Study) -> list[Block]:
    """Returns the table and the drawings of the looks of a sequential study."""
    if not study.looks:
        return [TextBlock("This study is sequential, and its first look (interim analysis) has not happened yet.")]
    recipes = list(dict.fromkeys(recipe for looked in study.looks for recipe in looked.found))
    drawings = look_texts.look_drawings(study.looks, recipes, _scale)
    text = (
        "Difference from the baseline by the number of seeds, with repeated 95% intervals. The band is the margin; a "
        "filled point is the look at which the comparison ended."
    )
    legend = [(recipe, number) for number, recipe in enumerate(recipes, 1)]
    drawn: list[Block] = [Figures(drawings, legend), TextBlock(text)] if drawings else []
    return [look_texts.looks_table(study.looks, _change), *drawn]


def _change(figure: str) -> look_texts.Change:
    """Returns the function that formats differences of a metric of sequences or, for other names, of scores."""
    return next((measure.change for measure in MEASURES if measure.name == figure), points)


def _scale(figure: str) -> tuple[float, str]:
    """Returns the factor and the unit with which differences of a metric are shown."""
    is_loss = any(measure.is_loss for measure in MEASURES if measure.name == figure)
    return (1.0, "nats per token") if is_loss else (100.0, "points")


def _ran(study: Study, results: Results) -> list[Block]:
    blocks: list[Block] = [TextBlock(f"From {', '.join(study.models)}.")] if study.models else []
    if results.rows:
        header = ["task", "metric", "classes", "train examples", "dev", "test", "recipes", "fine-tuning runs"]
        blocks.append(Table(header, [_task(row) for row in results.rows], "Tasks"))
    if trainings.exports_of(study):
        blocks += [
            trainings.pretraining(study),
            *trainings.retrieval_on_pairs(study),
            *trainings.standard_evaluations(study),
            *trainings.dropped_texts(study),
        ]
    if study.missing:
        items: list[list[Cell | str]] = [[name] for name in study.missing]
        blocks.append(Folded(f"Stages that were not run: {len(items)}", [Table(["stage"], items, words=True)]))
    return blocks


def _task(row: Row) -> list[Cell | str]:
    known = row.task_record.metrics if row.task_record else {}
    sizes = [known.get("examples", {}).get(split) for split in ("train", "dev", "test")]
    shown = [NONE if size is None else f"{size:,}" for size in sizes]
    classes = len(known["labels"]) if known.get("labels") else NONE
    runs = sum(len(group.entries) for group in row.groups.values())
    return [row.name, METRICS[row.metric], f"{classes}", *shown, f"{len(row.groups)}", f"{runs}"]


def _scores(results: Results, compared: Compared) -> list[Block]:
    if not results.rows:
        return []
    blocks: list[Block] = [task_tables.score_tables(results, compared)]
    if leaky := [row for row in results.rows if row.leaky]:
        clean = replace(results, rows=leaky)
        blocks.append(task_tables.score_tables(clean, compare_all(clean, without_leaks=True), without_leaks=True))
    if compared.tasks and results.looks is None:
        blocks.append(task_tables.score_differences(results, compared))
    blocks.append(Folded("The score of every seed", [task_tables.seeds(results)]))
    return blocks


def _costs(results: Results, compared: Compared, priced: Trainings) -> list[Block]:
    if not compared.tasks:
        return []
    blocks: list[Block] = [trainings.training_costs(results, compared, priced)]
    if drawing := task_tables.cost_against_gain(results, compared, priced):
        blocks.append(Figures([drawing], _legend(results, results.recipes[1:])))
    return blocks


def _curves(study: Study, results: Results) -> list[Block]:
    blocks: list[Block] = []
    if drawings := [drawing for row in results.rows if (drawing := task_tables.learning_curves(row, results))]:
        blocks += [
            TextBlock(
                "Score on dev by epoch of fine-tuning. Thick lines: mean over the seeds that still train. Faint lines:"
                " single seeds."
            )
        ]
        blocks += [Figures(drawings, _legend(results, results.recipes))]
    exports = trainings.exports_of(study)
    if trained := [curve for export in exports if (curve := task_tables.training_curve(export, export.label))]:
        blocks.append(Folded("Pre-training: loss by step", [Figures(trained)]))
    for export in exports:
        if measured := measured_blocks(export.result, export.record.key[:KEY]):
            blocks.append(Folded(f"{export.label}: held-out loss while it trained", measured))
    return blocks


def _selections(study: Study) -> list[Block]:
    return trainings.selection_blocks([entry for entry in study.entries if isinstance(entry.result, SelectionJudged)])


def _others(study: Study, traded: Sequence[ComparableModels]) -> list[Block]:
    """Returns the blocks of the stages that no comparison shows. Each stage occurs once, under its label."""
    drawn = {key for measured in traded for key in measured.compared}
    blocks: dict[str, list[Block]] = {}
    for entry in study.entries:
        if entry.record.stage in COMPARED or entry.record.key in drawn:
            continue
        if own := shown_by(entry.result, entry.record):
            blocks.setdefault(entry.record.key, [TextBlock(entry.label), *own])
    return [block for of_stage in blocks.values() for block in of_stage]


def _details(results: Results) -> list[Block]:
    return [detail for row in results.rows if (detail := task_tables.best_recipe(row, results)).blocks]


def _warnings(study: Study, results: Results, in_turn: Sequences) -> list[Block]:
    findings = [*sequence_warnings(in_turn), *warnings(study, results)]
    return [Findings(findings)] if findings else []


def _lineage(study: Study) -> list[Block]:
    nodes = lineage(study)
    if not nodes:
        return []
    note = (
        "Arrows lead from each stage to the stages that use its result. A box may stand for several similar stages. "
        "Measurements are left out."
    )
    return [Figures([(draw_lineage(nodes), note)], wide=True)]


def _reproduce(study: Study) -> list[Block]:
    records = [entry.record for entry in study.entries]
    if not records:
        return []
    text = (
        "A stage's key is a hash of what determines its result: the same key means the same result. Running the chain "
        "again with the same configuration and with the package versions below finds finished stages by their keys and "
        "runs the others."
    )
    stages: list[list[Cell | str]] = [
        [entry.label, entry.record.stage, entry.record.key[:KEY], str(entry.record.path)] for entry in study.entries
    ]
    versions: list[list[Cell | str]] = [
        [name, ", ".join(of_package)] for name, of_package in versions_of(records).items()
    ]
    return [
        TextBlock(text),
        Folded("Versions", [Table(["package", "version"], versions, words=True)]),
        Folded("Stages", [Table(["entry", "stage", "key", "folder"], stages, words=True)]),
    ]


MARKDOWN = "report.md"


def write_report(study: Study, folder: Path) -> list[Section]:
    """Writes the report to `report.html`, a self-contained page, and its text and tables to `report.md`.

    Returns:
        The sections of the report.
    """
    subtitle, contents = contents_of(study)
    for name, render in ((MARKDOWN, render_markdown), (HTML, render_html)):
        write_shared(folder / name, render(study.name, subtitle, contents))
    return contents


def contents_of(study: Study) -> tuple[str, list[Section]]:
    """Returns the content of a report: the line below the title, and the sections."""
    results = collect(study)
    return _subtitle(study, results), sections(study, results)


def _subtitle(study: Study, results: Results) -> str:
    """Returns the line below the report's title: the number of stages in the report, and the time of writing."""
    runs = sum(entry.record.stage == "finetune" for entry in study.entries)
    sequences = sum(entry.record.stage == "sequence" for entry in study.entries)
    searches = sum(entry.record.stage == "search" for entry in study.entries)
    parts = [_count(sequences, "domain sequence")] if sequences else []
    parts += [_count(searches, "search", "es")] if searches else []
    if results.rows:
        parts += [_count(len(results.rows), "task"), _count(len(results.recipes), "recipe")]
        parts += [_count(runs, "fine-tuning run")]
    if not parts:
        parts = [_count(sum(entry.record.stage == "export" for entry in study.entries), "trained model")]
    baseline = [f"baseline {results.baseline}"] if results.baseline else []
    missing = [f"{len(study.missing)} stages not run"] if study.missing else []
    return " · ".join([*parts, *baseline, *missing, f"written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"])


def _count(number: int, what: str, several: str = "s") -> str:
    return f"{number} {what}{'' if number == 1 else several}"


def warnings(study: Study, results: Results) -> list[FindingBlock]:
    """Lists warnings about problems that make the scores less reliable. The most serious warnings come first."""
    findings = (
        [FindingBlock("Not run", f"{len(study.missing)} stages are missing from this report.")] if study.missing else []
    )
    findings += [FindingBlock("Transductive", _transductive(results))] if results.transductive else []
    for row in results.rows:
        findings += [FindingBlock(row.name, text) for text in (*_of_data(row), *_of_runs(row, results))]
    for entry in trainings.exports_of(study):
        findings += [FindingBlock(entry.name, f"{text}.") for text in _of_training(entry.record.metrics)]
    findings += [FindingBlock("Not as recorded", text) for text in results.warnings]
    findings += [FindingBlock("Versions", text) for text in _versions(study)]
    return [FindingBlock(finding.head, finding.text, "warning") for finding in findings]


def _transductive(results: Results) -> str:
    names = ", ".join(results.label(recipe) for recipe in results.recipes if recipe in results.transductive)
    return f"{names}: pre-training has read the text of dev and test, so scores may be higher than on unseen text."


def _of_training(metrics: Mapping[str, Any]) -> list[str]:
    """Describes text that ended before the last step, text that the tokenizer reads badly, and skipped steps."""
    return [*filter(None, [metrics.get("cut_short"), *metrics.get("text_faults", []), skipped_steps(metrics)])]


def _of_data(row: Row) -> Iterator[str]:
    if not row.task_record:
        return
    known = row.task_record.metrics
    sizes = known.get("examples", {})
    if leaked := known.get("leaks", {}).get("test_in_train"):
        yield f"{leaked} of {sizes.get('test', '?')} test texts are also in train; see the scores without them."
    if leaked := known.get("leaks", {}).get("dev_in_train"):
        yield (
            f"{leaked} of {sizes.get('dev', '?')} dev texts are also in train, so the epoch that is best on dev may be"
            " too late."
        )
    yield from (f"{remark}." for remark in (*known.get("label_warnings", []), *known.get("text_faults", [])))
    if not known.get("label_warnings") and (unseen := known.get("unseen_classes")):
        yield f"classes of dev or test that train does not have: {', '.join(map(str, unseen))}."
    if conflicting := known.get("conflicting"):
        yield f"{conflicting} train texts occur again with another label."
    for split, count in _counts(known.get("empty_texts")).items():
        yield f"{count} texts of {split} are empty."


def _of_runs(row: Row, results: Results) -> Iterator[str]:
    most = max(len(group.entries) for group in row.groups.values())
    for recipe, group in row.groups.items():
        label = results.label(recipe)
        if len(group.entries) < most and results.looks is None:  # in a sequential study, comparisons may end early
            yield f"{label} has {len(group.entries)} of {most} seeds."
        degenerate = [str(metrics["seed"]) for metrics in group.metrics if metrics.get("degenerate")]
        if degenerate:
            yield (
                f"{label}, seed {', '.join(degenerate)}: the model predicts one class only. Its score is included in"
                " the means. If training ended early, set finetune.patience to null; otherwise raise finetune.epochs."
            )
    if most == 1:
        yield "each recipe has one seed, so the variation between fine-tuning runs is not measured."
    first = next(iter(row.groups.values())).metrics[0]
    for split, count in _counts(first.get("truncated")).items():
        size = row.task_record.metrics.get("examples", {}).get(split) if row.task_record else None
        yield f"{count}{f' of {size}' if size else ''} texts of {split} were truncated to the model's maximum length."


def _counts(values: Any) -> dict[str, int]:
    """Returns the counts that are not 0, keyed by split. A single number is the count of the train split."""
    by_split = values if isinstance(values, dict) else {"train": values or 0}
    return {str(split): count for split, count in by_split.items() if count}


def _versions(study: Study) -> Iterator[str]:
    for package, versions in versions_of([entry.record for entry in study.entries]).items():
        if len(versions) > 1:
            yield f"stages ran with different versions of {package}: {', '.join(versions)}."


def versions_of(records: list[Record]) -> dict[str, list[str]]:
    """Returns the versions of each package that the stages ran with, keyed by package."""
    versions: dict[str, list[str]] = {}
    for record in records:
        for package, version in record.packages.items():
            if version not in versions.setdefault(package, []):
                versions[package].append(version)
    return versions
