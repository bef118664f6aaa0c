"""Runs a search: the trials, then the best one with fresh seeds, and the report."""

from dataclasses import dataclass
from pathlib import Path

from adapt.runner import Finished, Store, ensure
from adapt.runner.record import RECORD_FILE
from adapt.show.blocks import Block, TextBlock
from adapt.show.pages import SelfShown
from adapt.show.report.study import HTML, Entry, Study
from adapt.stage.context import root_of
from adapt.stage.running import run_stages
from adapt.tuning.ahead import check_search
from adapt.tuning.confirm import Confirm, Confirmed
from adapt.tuning.search import BEST_FILE, Search, Searched


@dataclass(frozen=True)
class SearchRun(SelfShown):
    """A search that has run. `print(search)` shows the trials, and what the best one gains."""

    searched: Finished[Searched]
    confirmed: Finished[Confirmed] | None
    """What fresh seeds say; None where `tune.fresh_seeds` is empty."""
    report: Path
    """The page of the report."""

    @property
    def best(self) -> Path:
        """The configuration of the best trial, which the job takes as its configuration."""
        return self.searched.path / BEST_FILE

    def blocks(self) -> list[Block]:
        """The trials, and what the best one gains."""
        confirmed = self.confirmed.result.blocks(self.confirmed.record) if self.confirmed else []
        return [*self.searched.result.blocks(self.searched.record), *confirmed, TextBlock(f"report: {self.report}")]


def run_search(search: Search) -> SearchRun:
    """Runs the trials that have not run, then the best one with fresh seeds, and writes the report.

    Raises:
        AdaptError: the search cannot work, or no trial has ended well.
    """
    store = Store(root_of(search.config))
    check_search(search, store)
    searched = ensure(search, store)
    entries = [Entry(search.name, search.job.name, {}, searched)]
    confirmed: Finished[Confirmed] | None = None
    if search.config.tune.fresh_seeds:
        confirm = Confirm.of(search, searched.result)
        (record,) = run_stages([confirm], store, search.config.resources)
        confirmed = Finished.of(confirm, record)
        entries.append(Entry(search.name, search.job.name, {}, confirmed))
    return SearchRun(searched, confirmed, _report(search, entries, store))


def _report(search: Search, entries: list[Entry], store: Store) -> Path:
    """Writes the report, unless it is newer than all that it would say."""
    folder = store.root / "reports" / f"search-{search.name}"
    page, records = folder / HTML, [entry.record.path / RECORD_FILE for entry in entries]
    if not page.exists() or any(record.stat().st_mtime > page.stat().st_mtime for record in records):
        from adapt.show.report.report_page import write_report

        write_report(Study(search.name, "base", entries), folder)
    return page
