"""Counts of the records that were read, and how many of them may be unreadable."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from adapt.corpus.cleaning.block import count_change
from adapt.corpus.files.contents import fix_of
from adapt.errors import DataError

NAMED = 3
"""Files that a message names."""


@dataclass
class Tally:
    """Counts of what was kept and of what left, by reason, with the place of each reason's first case."""

    kept: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    """What blocks changed in the documents that they let pass."""
    first_bad: dict[str, str] = field(default_factory=dict)

    @property
    def seen(self) -> int:
        """All records."""
        return self.kept + sum(self.bad.values()) + sum(self.dropped.values())

    @property
    def unreadable(self) -> str:
        """How many records could not be read, for which reason, and where the first of each reason is."""
        return "; ".join(f"{count} {reason} (first: {self.first_bad[reason]})" for reason, count in self.bad.items())

    @property
    def left_out(self) -> str:
        """How many records left, by reason."""
        return ", ".join(f"{count} {reason}" for reason, count in {**self.bad, **self.dropped}.items())

    def add(self, other: "Tally") -> None:
        """Adds the counts of another part of the corpus that comes after this one."""
        self.kept += other.kept
        for mine, theirs in (
            (self.bad, other.bad),
            (self.dropped, other.dropped),
            (self.changed, other.changed),
        ):
            for reason, number in theirs.items():
                count_change(mine, reason, number)
        self.first_bad = {**other.first_bad, **self.first_bad}


def check_few_bad(tally: Tally, most: float, records: str = "records") -> None:
    """Refuses text of which more than a share of the records cannot be read.

    Args:
        tally: counts of all records that were read.
        most: the share, `corpus.max_bad_fraction`.
        records: what they are called.

    Raises:
        DataError: there are more.
    """
    bad = sum(tally.bad.values())
    known = fix_of(" ".join(tally.bad))
    if bad > most * tally.seen:
        raise DataError(
            f"{bad} of {tally.seen} {records} are unreadable: {tally.unreadable}",
            f"mend the files{known and f' ({known})'}, or raise corpus.max_bad_fraction (now {most})",
        )


def check_some_left(tally: Tally, files: Sequence[str]) -> None:
    """Refuses files of which no document is left to choose, or to compare with.

    Args:
        tally: counts of all records that were read.
        files: what was read.

    Raises:
        DataError: there is none; says for which reasons the records were left out.
    """
    if tally.kept:
        return
    named = ", ".join(files[:NAMED]) + (f" and {len(files) - NAMED} more" if len(files) > NAMED else "")
    raise DataError(
        f"no document of {named} is left: of {tally.seen} records all were left out ({tally.left_out})"
        if tally.seen
        else f"{named}: there is no record at all",
        "check the paths, the text field and corpus.cleaning; a pool must hold other text than dev and test",
    )
