"""The trials of a search that runs: what it writes down of them as they begin and end, and the table made of that."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from adapt.runner.files import write_atomically
from adapt.show.blocks import Table

TRIALS_FILE = "trials.json"
"""In the folder of a search while it runs; the record has the trials of one that has finished."""


@dataclass(frozen=True)
class TrialNow:
    """A trial under way, or one that has ended."""

    number: int
    values: str
    """What it has in place of the configuration, for people."""
    state: str
    """What of it runs and how far it is, after how many steps it was measured, or why it failed."""
    figures: list[float] = field(default_factory=list)
    """The objectives; empty until it is measured."""


@dataclass(frozen=True)
class TrialsNow:
    """How far a search is."""

    count: int
    """Trials in all, with that of the configuration as it is."""
    ended: int
    failed: int
    objectives: list[str]
    trials: list[TrialNow]
    """Those under way, the best that have ended, those that failed."""

    @property
    def title(self) -> str:
        """How many have ended, for people."""
        said = f"{self.ended} of {self.count} trials have ended"
        return f"{said}, {self.failed} failed" if self.failed else said

    def _rows(self) -> list[list[str]]:
        """The cells of the table."""
        blank = [""] * len(self.objectives)
        return [
            [str(trial.number), trial.state, *([f"{value:.4f}" for value in trial.figures] or blank), trial.values]
            for trial in self.trials
        ]

    def table(self, name: str = "") -> Table:
        """The trials as a table.

        Args:
            name: of the search, where several are shown.
        """
        title = f"{name}: {self.title}" if name else self.title
        return Table(["trial", "", *self.objectives, "values"], self._rows(), title, words=True)

    def save(self, folder: Path) -> None:
        """Writes it into the folder of its search."""
        write_atomically(folder / TRIALS_FILE, json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> "TrialsNow | None":
        """What the search in a folder has written down; None for other stages, and until a search has begun."""
        try:
            told = json.loads((folder / TRIALS_FILE).read_text())
            return cls(**{**told, "trials": [TrialNow(**trial) for trial in told["trials"]]})
        except (OSError, ValueError, TypeError, KeyError):  # TypeError: another version wrote it
            return None
