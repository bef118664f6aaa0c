"""A file that notes the domains that a sequence has begun to learn, so that no changed one silently starts anew."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from adapt.errors import ConfigError
from adapt.runner.files import write_atomically


@dataclass(frozen=True)
class Noted:
    """The domains of a sequence.

    Args:
        file: where they are noted.
        domains: name of each and key of its prepared text, in the order of now.
    """

    file: Path
    domains: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, root: Path, name: str, domains: tuple[tuple[str, str], ...]) -> "Noted":
        """The note of the sequence with this name, below a storage root."""
        return cls(root / "sequence" / f"{name}.order.json", domains)

    def check(self) -> None:
        """Refuses a sequence that is changed before its end.

        Raises:
            ConfigError: says where, and what to do.
        """
        for number, (new, old) in enumerate(zip(self.domains, self._known(), strict=False), start=1):
            if new[1] == old[1]:
                continue
            change, fix = f"domain {number} was {old[0]} and is now {new[0]}", "put new domains at the end"
            if new[0] == old[0]:
                change = f"the text of domain {number}, {new[0]}, or how it is read or decontaminated, has changed"
                fix = "undo that (evaluation sets of a new domain belong into its source's own `decontaminate`)"
            raise ConfigError(
                f"sequence {self.file.name.removesuffix('.order.json')}: {change}; this domain and all after it would"
                " be learnt again",
                f"{fix}, or give the sequence another name (--name; in a chain file, the chain's `name`): domains that"
                " both share are not learnt again",
            )

    def first(self, number: int) -> "Noted":
        """The note cut to its first domains."""
        return replace(self, domains=self.domains[:number])

    def save(self) -> None:
        """Writes the note, unless the file lists more domains already."""
        if len(self._known()) < len(self.domains):
            write_atomically(self.file, json.dumps(self.domains))

    def _known(self) -> list[tuple[str, str]]:
        try:
            return [(name, key) for name, key in json.loads(self.file.read_text())]
        except (OSError, ValueError, TypeError):
            return []  # nothing was begun; a broken note is no note
