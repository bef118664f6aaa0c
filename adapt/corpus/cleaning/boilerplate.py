"""Block `boilerplate`: lines that belong to the page and not to its text are taken out."""

from __future__ import annotations  # the catalogue reads the options' ranges by name

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from adapt.config import PositiveInt
from adapt.corpus.cleaning.block import Block, Drop, Edit, count_change, edited

_NOTICE = re.compile(
    r"""\b(?:
    (?:we|site|website|page) \s+ uses? \s+ (?:\w+ \s+)? cookies
    | (?:accept|cookie) \s+ (?:all|policy|settings|preferences)
    | all \s+ rights \s+ reserved | copyright \s+ (?:\(c\)|©|\d{4})
    | terms \s+ (?:of \s+ (?:use|service)|and \s+ conditions)
    | privacy \s+ (?:policy|statement|notice) | javascript \s+ (?:is \s+)? (?:disabled|required|enabled)
    | enable \s+ javascript | share \s+ (?:this|on) \b (?=.{0,30}$) | (?:follow|like|find) \s+ us \s+ on
    | (?:sign \s+ up|subscribe) \s+ (?:for|to) \s+ (?:our|the|this) | (?:click|tap) \s+ here
    | (?:log|sign) \s+ in \s+ (?:to|or) | (?:read|view|load) \s+ more $ | skip \s+ to \s+ (?:main \s+)? content
    | back \s+ to \s+ top | leave \s+ a \s+ (?:comment|reply) | powered \s+ by \s+ \w+ $
    ) | ©""",
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True)
class Boilerplate(Block):
    """Removes short lines that are notices of English web pages (cookies, copyright, sharing, …) or repeat themselves.

    Longer lines stay whatever they say, for they are text about such things.
    """

    name: ClassVar[str] = "boilerplate"
    max_words: PositiveInt = 20
    """A line may be boilerplate only up to this length [words]."""
    max_repeats: PositiveInt = 2
    """At most this many equal short lines stay, the first ones."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """The text without those lines."""
        seen: dict[str, int] = {}
        edits = []
        for start, line in _lines(text):
            content = line.strip()
            if not content or len(content.split()) > self.max_words:
                continue
            seen[content] = seen.get(content, 0) + 1
            if notice := _NOTICE.search(content):
                count_change(changes, "boilerplate notices")
            elif seen[content] > self.max_repeats:
                count_change(changes, "boilerplate repeats")
            if notice or seen[content] > self.max_repeats:
                edits.append(Edit(start, start + len(line)))
        return edited(text, edits) if edits else text


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with the place where they start; their ends are part of them."""
    start = 0
    for line in text.splitlines(keepends=True):
        yield start, line
        start += len(line)
