"""Compares selections: what was taken of a pool, next to random documents and the target."""

from collections.abc import Sequence

from adapt.select.judge.nearness import Nearness
from adapt.show.blocks import Block, FindingBlock, Findings, Folded
from adapt.show.report.entry import Entry
from adapt.show.report.selection_map import selection_map
from adapt.stage.selecting.selection import example_table, nearness_table

OPEN, MOST = 3, 12
"""Maps that are shown at once, and together with those that are folded: each takes some 130 KB of the page."""


def selection_blocks(entries: Sequence[Entry]) -> list[Block]:
    """A table of all selections, a map of each, and documents to read.

    Args:
        entries: stages of kind `selection`; one that comes again is shown once.
    """
    entries = list({entry.record.key: entry for entry in reversed(entries)}.values())[::-1]
    if not entries:
        return []
    judged: dict[str, Nearness] = {}
    for entry in entries:
        judged[entry.label] = entry.result.selection
        if entry.result.random:
            judged[f"{entry.label}, random"] = entry.result.random
        judged[f"{entry.label}, target"] = entry.result.target
    chosen = [entry for entry in entries if entry.result.random][:MOST]
    maps = [drawn for entry in chosen if (drawn := selection_map(entry.label, entry.record))]
    read = [table for entry in entries if (table := example_table(entry.label, entry.record.path))]
    warned = [FindingBlock(entry.label, line, "warning") for entry in entries for line in entry.result.markup]
    return [
        *([Findings(warned)] if warned else []),
        nearness_table(judged),
        *maps[:OPEN],
        *([Folded("More maps", maps[OPEN:])] if maps[OPEN:] else []),
        Folded("Documents that were selected, to be read", read),
    ]
