"""Block `language`: documents in other languages leave."""

from __future__ import annotations  # the catalogue reads the options' ranges by name

from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

from adapt.config import Fraction, PositiveInt
from adapt.corpus.cleaning.block import Block, Drop
from adapt.errors import ConfigError


@dataclass(frozen=True)
class Language(Block):
    """Keeps the documents that a byte n-gram classifier takes for one of some languages (Lui and Baldwin 2012).

    The classifier, py3langid, carries its model of 140 languages in its package and draws no random numbers.
    """

    name: ClassVar[str] = "language"
    packages: ClassVar[tuple[str, ...]] = ("py3langid",)
    keep: list[str] = field(default_factory=lambda: ["en"])
    """ISO 639 codes."""
    min_score: Fraction = 0.65
    """Documents whose language is less likely than this are dropped too. Below some 30 characters it often is."""
    max_characters: PositiveInt = 4000
    """The classifier looks at so much of the beginning [characters]."""

    def __post_init__(self) -> None:
        """Unknown codes are refused."""
        known = _classifier().labels
        if unknown := [code for code in self.keep if code not in known]:
            raise ConfigError(
                f"corpus.cleaning: language.keep names unknown languages: {', '.join(unknown)}",
                f"the codes are {', '.join(sorted(known))}",
            )

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """The text, where its language is one of those."""
        code, score = _classifier().classify(text[: self.max_characters])
        if score < self.min_score:
            return Drop("language unclear")
        return text if code in self.keep else Drop(f"language {code}")


@cache
def _classifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
