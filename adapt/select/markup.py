"""Finds and removes markers that a target contains and a pool lacks: brackets around entities, tags, placeholders.

A task's text may mark what the label is about, such as `<< gefitinib >>` or `@GENE$`. Documents of a pool have no such
markers. If texts were compared with their markers, for example by the mean of token embeddings, the comparison would
find documents that resemble the markers. So markers that are frequent in a target and rare in a pool are removed from
the target before the comparison.

Words are not removed, because a word may be the very subject of the target. If most texts of the target have a word
that the pool lacks, the user is warned. Selections by n-grams ignore n-grams that never occur in the pool (`grams`).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

LEAST_SHARE, LEAST_TEXTS = 0.05, 2
"""A marker is frequent if at least this share and at least this number of the target's texts contain it."""
WORD_SHARE, WORD_TEXTS = 0.5, 10
"""A word is frequent if at least this share and at least this number of the target's texts contain it."""
RARER = 0.01
"""A marker or word is rare in the pool if the share of documents that contain it is at most this fraction of the share
of target texts that contain it."""
SIGN = re.compile(
    r"</?[^\W\d_][\w-]*(?:\s[^<>]*)?/?>"  # tags: <e1>, </e1>, <br />
    r"|\[/?[A-Z][A-Z0-9_]*\]"  # [CLS], [/E1]
    r"|@[^\W\d_]\w*\$"  # @GENE$
    r"|&#?\w{2,8};"  # &lt;
    r"|([^\w\s])\1+"  # [[ << ## **
    r"|[<>\[\]{}|#@^~*$\u00a7\u00b6\u2020\u2021\u2022]"
)
_ATTRIBUTES = re.compile(r"\s[^<>]*")
_WORD = re.compile(r"[^\W_]\w*")
_SPACES = re.compile(" {2,}")


@dataclass(frozen=True)
class Mark:
    """A marker or word that is frequent in a target and rare in the pool."""

    text: str
    share: float
    """Share of the target's texts that contain the marker or word."""
    pool_share: float
    """Share of the documents in a sample of the pool that contain the marker or word."""
    is_word: bool
    """Whether this is a word and not a marker. Only markers are removed from the target."""


def foreign_marks(target: Sequence[str], pool: Sequence[str]) -> list[Mark]:
    """Returns the markers and words that are frequent in a target and rare in a pool, the most frequent first."""
    found = []
    for is_word, parts, least, texts in (
        (False, _signs, LEAST_SHARE, LEAST_TEXTS),
        (True, _words, WORD_SHARE, WORD_TEXTS),
    ):
        mine, theirs = _shares(target, parts), _shares(pool, parts)
        found += [
            Mark(part, share, theirs.get(part, 0.0), is_word)
            for part, share in mine.items()
            if share >= least and share * len(target) >= texts and theirs.get(part, 0.0) <= RARER * share
        ]
    return sorted(found, key=lambda mark: (mark.is_word, -mark.share, mark.text))


def without_marks(texts: Iterable[str], marks: Iterable[Mark]) -> list[str]:
    """Removes markers from texts. A text that consists only of markers is unchanged.

    Only the markers are removed, not the words.
    """
    signs = {mark.text for mark in marks if not mark.is_word}
    if not signs:
        return list(texts)

    def left(match: re.Match[str]) -> str:
        return " " if _sign(match) in signs else match[0]

    return [_SPACES.sub(" ", SIGN.sub(left, text)).strip() or text for text in texts]


def markup_warnings(marks: Sequence[Mark]) -> list[str]:
    """Returns warnings for the user: one for markers, one for words."""
    signs, words = (_listed([mark for mark in marks if mark.is_word == is_word]) for is_word in (False, True))
    lines = []
    if signs:
        lines.append(
            f"the target has markup that the pool lacks, and this markup is ignored in the comparison: {signs}"
        )
    if words:
        lines.append(
            f"most texts of the target have words that do not occur in a sample of the pool: {words}; if these words"
            " are markup, remove them from the target's texts (dsir and classifier ignore n-grams that never occur in"
            " the pool)"
        )
    return lines


def _listed(marks: Sequence[Mark], most: int = 8) -> str:
    shown = ", ".join(f"{mark.text} ({mark.share:.0%} of its texts)" for mark in marks[:most])
    return shown + (f", and {len(marks) - most} more" if len(marks) > most else "")


def _shares(texts: Sequence[str], parts: Callable[[str], set[str]]) -> dict[str, float]:
    """Returns, for each marker or word, the share of texts that contain it.

    `parts` finds the markers or words of a text.
    """
    counts = Counter(part for text in texts for part in parts(text))
    return {part: count / len(texts) for part, count in counts.items()}


def _signs(text: str) -> set[str]:
    return {_sign(match) for match in SIGN.finditer(text)}


def _sign(match: re.Match[str]) -> str:
    """Returns the text of a marker. A tag is reduced to its name, without attributes."""
    return _ATTRIBUTES.sub("", match[0]) if match[0].startswith("<") else match[0]


def _words(text: str) -> set[str]:
    """Returns the words that are not part of a marker, in lower case."""
    return {match[0].casefold() for match in _WORD.finditer(SIGN.sub(" ", text))}
