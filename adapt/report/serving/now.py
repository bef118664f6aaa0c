"""How far a chain is: what runs, with its loss as it falls, what waits and why, and what has been spent."""

from adapt.report.tasks.figures import Drawing, loss_curve
from adapt.show.blocks import Block, Figures, FindingBlock, Findings, Section, Table, TextBlock
from adapt.summary.chain import ENTRY_COLUMNS
from adapt.summary.now import ChainNow, TrainingNow

MOST_CURVES = 12
"""Drawings that the section has at most; those of running trainings come first."""


def now_section(now: ChainNow) -> Section:
    """The section that stands before the report of what is finished."""
    total = sum(now.counts.values())
    counts = f"{now.counts['finished']} of {total} stages finished, {now.counts['running']} running."
    later = f" {len(now.later)} more follow when the searches are finished." if now.later else ""
    blocks: list[Block] = [TextBlock(counts + later), Table(ENTRY_COLUMNS, now.entries)]
    if now.running:
        rows = [[stage, dotted(said)] for stage, said in now.running]
        blocks.append(Table(["stage", "what it said last"], rows, "Running now", words=True))
    for name, trials in now.searches:
        blocks.append(Table(trials.columns(), trials.rows(), f"Search {name}: {trials.title}", words=True))
    if drawings := _curves(now):
        blocks.append(Figures(drawings))
    if now.waiting:
        blocks.append(TextBlock("What waits, and why:"))
        blocks.append(Findings([FindingBlock(what, why, _tone(why)) for what, why in now.waiting]))
    return Section("Now", [*blocks, *(TextBlock(line) for line in now.costs)])


def _curves(now: ChainNow) -> list[Drawing]:
    drawn = (
        loss_curve(training.metrics, f"now-{training.key[:12]}", _caption(training))
        for training in now.trainings[:MOST_CURVES]
    )
    return [drawing for drawing in drawn if drawing]


def _caption(training: TrainingNow) -> str:
    """What runs is told above."""
    return (
        training.name if training.state == "running" else f"{training.name}, {training.state}: {dotted(training.said)}"
    )


def dotted(said: str) -> str:
    """A report whose parts stay apart where a page makes one blank of two."""
    return said.replace("  ", " · ")


def _tone(why: str) -> str:
    return "warning" if "failed: " in why else "open"
