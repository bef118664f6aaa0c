"""The report's sections, in reading order: the verdict first, how to reproduce it last."""

from collections.abc import Sequence
from dataclasses import replace

from adapt.show.blocks import NONE, Block, Cell, Figures, Findings, Folded, Section, Table, TextBlock, shown_by
from adapt.show.report import trainings
from adapt.show.report.entry import Study
from adapt.show.report.lineage import lineage
from adapt.show.report.lineage_svg import draw_lineage
from adapt.show.report.searches.found import searches_of
from adapt.show.report.searches.section import search_blocks, search_verdicts
from adapt.show.report.selections import selection_blocks
from adapt.show.report.sequences.front import front_verdict
from adapt.show.report.sequences.runs import Sequences, sequences_of
from adapt.show.report.sequences.section import section as sequences_section
from adapt.show.report.sequences.verdict import sequence_verdicts, sequence_warnings
from adapt.show.report.tasks import details, figures, tables
from adapt.show.report.tasks.collect import METRICS, Results, Row
from adapt.show.report.tasks.compared import Compared, compare_all
from adapt.show.report.tasks.cost import Trainings
from adapt.show.report.tasks.verdict import verdicts
from adapt.show.report.tasks.warnings import versions_of, warnings
from adapt.show.report.tradeoffs.front import FEWEST
from adapt.show.report.tradeoffs.points import MeasuredAlike, tradeoffs
from adapt.show.report.tradeoffs.section import tradeoff_section, tradeoff_verdicts
from adapt.stage.selecting.selection import SelectionJudged

COMPARED = ("export", "finetune", "sequence", "selection", "search", "confirm")
"""Kinds of stages that the comparisons show."""
KEY = 12
"""Characters of a key that are shown."""


def sections(study: Study, results: Results) -> list[Section]:
    """Builds all sections, and leaves out those that have nothing to say."""
    compared, priced, in_turn = compare_all(results), Trainings(study), sequences_of(study)
    traded = tradeoffs(study, FEWEST)
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
    traded: Sequence[MeasuredAlike],
) -> list[Block]:
    findings = [*tradeoff_verdicts(traded), *front_verdict(in_turn), *sequence_verdicts(in_turn)]
    searched = search_verdicts(searches_of(study))
    if results.rows or not (findings or searched):
        findings = [*findings, *verdicts(results, compared, priced)]
    findings = [*findings, *searched]
    blocks: list[Block] = [Findings(findings)]
    if drawings := figures.difference_figures(results, compared):
        text = (
            "Difference from the baseline with 95% intervals; hollow: may be chance (Holm-corrected p of .05 or more)."
        )
        blocks += [Figures(drawings), TextBlock(text)]
    return blocks


def _ran(study: Study, results: Results) -> list[Block]:
    blocks: list[Block] = [TextBlock(f"From {', '.join(study.models)}.")] if study.models else []
    if results.rows:
        header = ["task", "metric", "classes", "train", "dev", "test", "recipes", "runs"]
        blocks.append(Table(header, [_task(row) for row in results.rows], "Tasks"))
    if trainings.exports_of(study):
        blocks.append(trainings.pretraining(study))
    if study.missing:
        items: list[list[Cell | str]] = [[name] for name in study.missing]
        blocks.append(Folded(f"Not run: {len(items)}", [Table(["stage"], items, words=True)]))
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
    blocks: list[Block] = [tables.score_tables(results, compared)]
    if leaky := [row for row in results.rows if row.leaky]:
        clean = replace(results, rows=leaky)
        blocks.append(tables.score_tables(clean, compare_all(clean, without_leaks=True), without_leaks=True))
    if compared.tasks:
        blocks.append(tables.score_differences(results, compared))
    blocks.append(Folded("The score of every seed", [tables.seeds(results)]))
    return blocks


def _costs(results: Results, compared: Compared, priced: Trainings) -> list[Block]:
    if not compared.tasks:
        return []
    blocks: list[Block] = [trainings.training_costs(results, compared, priced)]
    if drawing := figures.cost_against_gain(results, compared, priced):
        blocks.append(Figures([drawing], _legend(results, results.recipes[1:])))
    return blocks


def _curves(study: Study, results: Results) -> list[Block]:
    blocks: list[Block] = []
    if drawings := [drawing for row in results.rows if (drawing := figures.learning_curves(row, results))]:
        blocks += [
            TextBlock("Fine-tuning: score on dev by epoch; mean over the seeds still training, each seed faintly.")
        ]
        blocks += [Figures(drawings, _legend(results, results.recipes))]
    exports = trainings.exports_of(study)
    if trained := [curve for export in exports if (curve := figures.training_curve(export, export.label))]:
        blocks.append(Folded("Pre-training: loss by step", [Figures(trained)]))
    return blocks


def _selections(study: Study) -> list[Block]:
    return selection_blocks([entry for entry in study.entries if isinstance(entry.result, SelectionJudged)])


def _others(study: Study, traded: Sequence[MeasuredAlike]) -> list[Block]:
    """What stages show of themselves that no comparison has shown: each once, under its label."""
    drawn = {key for measured in traded for key in measured.compared}
    blocks: dict[str, list[Block]] = {}
    for entry in study.entries:
        if entry.record.stage in COMPARED or entry.record.key in drawn:
            continue
        if own := shown_by(entry.result, entry.record):
            blocks.setdefault(entry.record.key, [TextBlock(entry.label), *own])
    return [block for of_stage in blocks.values() for block in of_stage]


def _details(results: Results) -> list[Block]:
    return [detail for row in results.rows if (detail := details.best_recipe(row, results)).blocks]


def _warnings(study: Study, results: Results, in_turn: Sequences) -> list[Block]:
    findings = [*sequence_warnings(in_turn), *warnings(study, results)]
    return [Findings(findings)] if findings else []


def _lineage(study: Study) -> list[Block]:
    nodes = lineage(study)
    if not nodes:
        return []
    note = "What was made of what; stages of one kind that serve the same are drawn as one, measurements are left out."
    return [Figures([(draw_lineage(nodes), note)], wide=True)]


def _reproduce(study: Study) -> list[Block]:
    records = [entry.record for entry in study.entries]
    if not records:
        return []
    text = (
        "A stage's key is a hash of what determines its result: the same key means the same result. Running the chain "
        "again with its configuration, on the versions below, finds finished stages by their keys and runs the others."
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
