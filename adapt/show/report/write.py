"""Writes the report of a study."""

from datetime import UTC, datetime
from pathlib import Path

from adapt.runner.files import write_atomically
from adapt.show.blocks import Section
from adapt.show.html import render_html
from adapt.show.markdown import render_markdown
from adapt.show.report.entry import HTML, Study
from adapt.show.report.sections import sections
from adapt.show.report.tasks.collect import Results, collect

MARKDOWN = "report.md"


def write_report(study: Study, folder: Path) -> Path:
    """Writes `report.html`, one file that needs nothing else, and `report.md`, its text and tables.

    Returns:
        The HTML file.
    """
    subtitle, contents = contents_of(study)
    write_atomically(folder / MARKDOWN, render_markdown(study.name, subtitle, contents))
    write_atomically(folder / HTML, render_html(study.name, subtitle, contents))
    return folder / HTML


def contents_of(study: Study) -> tuple[str, list[Section]]:
    """What a study's report says: the line below its title, and its sections."""
    results = collect(study)
    return _subtitle(study, results), sections(study, results)


def _subtitle(study: Study, results: Results) -> str:
    """The line below the title: how much the report covers, and when it was written."""
    runs = sum(entry.record.stage == "finetune" for entry in study.entries)
    sequences = sum(entry.record.stage == "sequence" for entry in study.entries)
    searches = sum(entry.record.stage == "search" for entry in study.entries)
    parts = [_count(sequences, "domain sequence")] if sequences else []
    parts += [_count(searches, "search", "es")] if searches else []
    if results.rows or not (sequences or searches):
        parts += [_count(len(results.rows), "task"), _count(len(results.recipes), "recipe")]
        parts += [_count(runs, "fine-tuning run")]
    baseline = [f"baseline {results.baseline}"] if results.baseline else []
    missing = [f"{len(study.missing)} stages not run"] if study.missing else []
    return " · ".join([*parts, *baseline, *missing, f"written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"])


def _count(number: int, what: str, several: str = "s") -> str:
    return f"{number} {what}{'' if number == 1 else several}"
