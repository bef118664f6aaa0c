"""The vocabulary: what a domain's words are broken into, and what is changed about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adapt.config.fields import PositiveFloat, PositiveInt, how


@dataclass(frozen=True)
class VocabularyConfig:
    """The model's tokens and the words of a domain (jobs/vocabulary.py), which are those of the corpus."""

    action: Literal["analyze"] = how("analyze")
    """What is done: `analyze` measures how the tokenizer breaks the domain's words, and what more tokens would save.
    The first word after jobs/vocabulary.py stands for it."""
    min_count: PositiveInt = 5
    """A word becomes a token only if the corpus has it as often."""
    max_megabytes: PositiveFloat = 200.0
    """So much of the corpus is read, from places all over it [MB of text as UTF-8]. Its words are counted in memory."""
