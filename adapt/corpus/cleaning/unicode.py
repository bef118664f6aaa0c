"""Block `fix_unicode`: text that was decoded wrongly is mended."""

from __future__ import annotations  # the catalogue reads the options' ranges by name

from dataclasses import dataclass
from typing import ClassVar

from adapt.corpus.cleaning.block import Block, Drop, count_change


@dataclass(frozen=True)
class FixUnicode(Block):
    """Undoes wrong decodings ("Ã©" for "é"), HTML entities, ligatures and the like with ftfy (Speer 2019).

    Straight quotes take the place of curly ones only where `uncurl_quotes` is set, and HTML entities are decoded where
    the text holds no tag, as ftfy does by default.
    """

    name: ClassVar[str] = "fix_unicode"
    packages: ClassVar[tuple[str, ...]] = ("ftfy",)
    keeps_entities: ClassVar[bool] = False
    uncurl_quotes: bool = False
    """Make curly quotes straight."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """The text as it was meant."""
        import ftfy

        fixed = ftfy.fix_text(text, uncurl_quotes=self.uncurl_quotes)
        count_change(changes, self.name, fixed != text)
        return fixed
