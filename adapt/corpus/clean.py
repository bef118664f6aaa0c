"""Which documents enter, and which are held out. Every document that leaves does so for a named reason."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from adapt.config import CorpusConfig
from adapt.corpus.entities import Span, Tagged
from adapt.corpus.formats import Bad

_SURROGATES = range(0xD800, 0xE000)  # halves of a character that was cut in two; no encoding can write them
_CONTROL = dict.fromkeys({*range(32), 127, *_SURROGATES} - {*map(ord, "\t\n\r")})
_NO_LETTER = re.compile(r"[\W\d_]+")


@dataclass
class Tally:
    """Counts of what was kept and of what left, by reason, with the place of each reason's first case."""

    kept: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    first_bad: dict[str, str] = field(default_factory=dict)

    @property
    def seen(self) -> int:
        """All records."""
        return self.kept + sum(self.bad.values()) + sum(self.dropped.values())

    def add(self, other: "Tally") -> None:
        """Adds the counts of another part of the corpus that comes after this one."""
        self.kept += other.kept
        for mine, theirs in ((self.bad, other.bad), (self.dropped, other.dropped)):
            for reason, count in theirs.items():
                mine[reason] = mine.get(reason, 0) + count
        self.first_bad = {**other.first_bad, **self.first_bad}


def clean(records: Iterable[str | Bad], corpus: CorpusConfig, tally: Tally, source: str) -> Iterator[str]:
    """The texts worth training on. Control characters go; everything else stays as written.

    Args:
        records: texts, or reasons why there is none.
        corpus: the limits.
        tally: counted into, also for what is dropped.
        source: the file's name, for the messages.
    """
    for number, record in enumerate(records, start=1):
        if isinstance(record, Bad):
            tally.bad[record] = tally.bad.get(record, 0) + 1
            tally.first_bad.setdefault(record, f"{source}, record {number}")
            continue
        text = record.translate(_CONTROL).strip()
        if reason := _reason_to_drop(text, corpus):
            tally.dropped[reason] = tally.dropped.get(reason, 0) + 1
            continue
        tally.kept += 1
        yield Tagged.of(text, _moved(record, text)) if isinstance(record, Tagged) else text


def _moved(record: Tagged, text: str) -> list[Span]:
    """Where the entities of a record are in its clean text."""
    kept = list(accumulate((ord(character) not in _CONTROL for character in record), initial=0))
    stripped = kept[-1] - len(record.translate(_CONTROL).lstrip())
    spans = (tuple(min(max(kept[place] - stripped, 0), len(text)) for place in span) for span in record.entities)
    return [(start, end) for start, end in spans if start < end]


def _reason_to_drop(text: str, corpus: CorpusConfig) -> str | None:
    if not text:
        return "empty"
    if len(text) < corpus.min_characters:
        return "too short"
    letters = len(_NO_LETTER.sub("", text))
    wanted = corpus.min_letter_fraction * len("".join(text.split()))
    if letters < wanted and letters + _marks(text) < wanted:
        return "too few letters"
    return None


def _marks(text: str) -> int:
    """Vowel signs and the like, which are no letters to Unicode but half of the text in Burmese."""
    return sum(unicodedata.category(character)[0] == "M" for character in text)


def is_heldout(text: str, fraction: float) -> bool:
    """Whether a document belongs to the held-out share: a function of its text, so that its copies go with it."""
    position = int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())
    return position < fraction * 2**64
