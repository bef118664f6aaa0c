"""Generates random texts from all of Unicode that are hard to split into pieces.

The generator is independent of the adversarial texts in the package.
"""

import random
import sys
import unicodedata
from functools import cache

from tests.samples import WORDS
from tests.tokenizers import ODD, SPECIAL

WRITTEN = [
    *SPECIAL,
    *ODD,
    "don't",
    "we'll've",
    "3.14",
    "x" * 120,
    "e\u0301",
    "\u1112\u1161",
    "👩\u200d👩",
    "a\u0308\u0301",
]


@cache
def by_category() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    # every 16th suffices above 0x20000, where few categories occur
    for number in (*range(0x20000), *range(0x20000, sys.maxunicode, 16)):
        category = unicodedata.category(chr(number))
        if category != "Cs":  # `tokenizers` refuses lone surrogates
            found.setdefault(category, []).append(chr(number))
    return found


def adversaries(count: int, seed: int) -> list[str]:
    """Returns random texts, mixed from words, blanks, ASCII characters and any other characters."""
    draw, kinds = random.Random(seed), list(by_category().values())

    def part() -> str:
        chance = draw.random()
        if chance < 0.35:
            return draw.choice(WORDS)
        if chance < 0.65:
            return draw.choice([" ", " ", " ", " ", "  ", "\n", "\t", "\u00a0", "\r\n", ""])
        if chance < 0.8:
            return chr(draw.randrange(128))
        return draw.choice(WRITTEN) if chance < 0.9 else draw.choice(draw.choice(kinds))

    return ["".join(part() for _ in range(draw.randint(0, 50))) for _ in range(count)]
