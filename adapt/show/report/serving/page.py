"""The page of a chain: how far it is, and the report of what is finished, made when somebody looks."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from adapt.errors import AdaptError
from adapt.show.blocks import FindingBlock, Findings, Section
from adapt.show.html import render_html
from adapt.show.progress.now import ChainNow
from adapt.show.report.entry import Study
from adapt.show.report.write import contents_of

LEAST_S = 2.0
"""For so long a page is handed out again, whoever asks for it, before the chain is looked at anew."""
SHARE = 0.2
"""Looking takes at most this share of the time, however large the chain."""


@dataclass
class FollowedPage:
    """A page that is up to date whenever it is asked for; any number of threads may ask.

    A look that fails (a record that cannot be read, storage that is gone) is told on the page, with what was seen last.
    """

    name: str
    look: Callable[[], tuple[Study, ChainNow]]
    _made: str = ""
    _again_at: float = 0.0
    _finished: tuple[str, ...] | None = None
    _report: tuple[str, list[Section]] = ("", [])
    _now: list[Section] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def html(self) -> str:
        """The page as it is now."""
        with self._lock:
            began = time.monotonic()
            if began >= self._again_at:
                self._made = self._make()
                took = time.monotonic() - began
                self._again_at = time.monotonic() + max(LEAST_S, took / SHARE)
            return self._made

    def _make(self) -> str:
        warnings: list[Section] = []
        try:
            study, now = self.look()
            self._now = [Section("Now", now.blocks())]
            finished = tuple(entry.record.key for entry in study.entries)
            if finished != self._finished:  # the report takes seconds, and changes with what is finished alone
                self._report, self._finished = contents_of(study), finished
        except (AdaptError, OSError) as error:
            warnings = [Section("Not seen", [Findings([FindingBlock(type(error).__name__, str(error), "warning")])])]
        subtitle, contents = self._report
        return render_html(self.name, subtitle, [*warnings, *self._now, *contents], follows=True)
