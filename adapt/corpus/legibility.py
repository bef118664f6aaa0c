"""Measures how well a tokenizer covers a corpus, on a sample of each chunk: unknown words and pieces per word.

A model learns nothing about a word that its tokenizer does not know, and little about a word that is split into letters
or bytes. Training on a corpus in another language than the model's raises no error, so stage `prepare` measures this
and warns. Byte-level tokenizers know every word, so the number of pieces is measured as well as unknown words.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adapt.model.tokenize.text_tokenizer import TextTokenizer

DOCUMENTS, CHARACTERS = 50, 400
"""Size of the sample of a chunk: largest number of documents, which are spread over the chunk, and number of characters
that are read of each document."""
FEWEST_WORDS = 100
"""Smallest number of words in a sample for which a warning is given."""
MOST_UNKNOWN = 0.02
"""Largest share of words with an unknown part for which no warning is given."""
MOST_PIECES = 2.5
"""Largest number of pieces per word for which no warning is given, in scripts with blanks between words. Tokenizers of
the text's language have 1.1 to 1.7 pieces per word."""
FEWEST_BYTES = 2.0
"""Smallest number of bytes per piece for which no warning is given. Tokenizers of the text's language have 3 to 5 bytes
per piece."""
SPELLS = 1000
"""Smallest vocabulary for which pieces are counted [tokens]. Tokenizers with fewer tokens split all words into letters
or bytes by design."""
MARKS = (
    r"\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0971-\u0dff"
    r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"
)
"""Characters, as part of a pattern, that Python does not count as letters: accents, vowel signs, and the blocks of the
scripts that have many vowel signs."""
SIGNS = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Chinese characters and Japanese kana, as part of a pattern. Each of these characters counts as a word."""
WORD = re.compile(rf"[{SIGNS}]|(?:(?![{SIGNS}])[^\W\d_]|[{MARKS}])+")
"""Pattern of a word: a run of letters with their marks, or one Chinese character or kana."""
UNSPACED = re.compile(rf"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff{SIGNS}]")
"""Pattern of a character of a script without blanks between words: Thai, Lao, Tibetan, Burmese, Khmer, Chinese,
Japanese."""
FIGURES = ("words", "unknown_words", "spaced_words", "spaced_pieces", "pieces", "bytes")
COUNT = "sample_"
"""Prefix of the names under which a chunk's `Counter` holds FIGURES, which distinguishes them from its other names."""


@dataclass(frozen=True)
class Legibility:
    """How a tokenizer splits the words of a sample of a corpus. A word is a run of letters.

    For tokenizers of fewer than SPELLS tokens, only `words` and `unknown_words` are counted, and other counts are 0.
    """

    words: int
    unknown_words: int
    """Number of words with a part that the tokenizer does not know."""
    spaced_words: int
    """Number of words in scripts with blanks between words."""
    spaced_pieces: int
    """Number of tokens of the words counted in `spaced_words`."""
    pieces: int
    """Number of tokens of all words."""
    bytes: int
    """Number of bytes of all words in UTF-8."""
    unknown_share: float | None = None
    """Share of words with an unknown part, unknown_words / words; None if the sample has no words."""
    pieces_per_word: float | None = None
    """Mean number of tokens of a word, spaced_pieces / spaced_words; None if `spaced_words` is 0."""
    bytes_per_piece: float | None = None
    """Mean number of bytes of a token, bytes / pieces; None if `pieces` is 0."""

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> "Legibility":
        """Computes shares and means from the numbers of words and tokens of `count_sample`, summed over chunks."""
        found = {name: counts.get(f"{COUNT}{name}", 0) for name in FIGURES}
        return cls(
            **found,
            unknown_share=_ratio(found["unknown_words"], found["words"]),
            pieces_per_word=_ratio(found["spaced_pieces"], found["spaced_words"]),
            bytes_per_piece=_ratio(found["bytes"], found["pieces"]),
        )

    @classmethod
    def together(cls, parts: Iterable["Legibility | Mapping[str, Any] | None"]) -> "Legibility | None":
        """Joins the word statistics of several sources; None if there is no source or a source was not measured."""
        known = [asdict(part) if isinstance(part, Legibility) else part for part in parts]
        if not known or None in known:
            return None
        sums: Counter[str] = Counter()
        for part in known:
            sums.update({f"{COUNT}{name}": int(part[name]) for name in FIGURES} if part else {})
        return cls.of(sums)

    def faults(self) -> list[str]:
        """Returns a warning with advice if too many words are unknown or are split into too many tokens."""
        if self.words < FEWEST_WORDS:
            return []
        found = []
        if (self.unknown_share or 0.0) > MOST_UNKNOWN:
            found.append(
                f"the tokenizer does not know a part of {self.unknown_share:.1%} of the words (limit"
                f" {MOST_UNKNOWN:.0%}), and the model learns nothing of these: begin with a model of this language and"
                " script (model.path), or train a tokenizer and a model on it (dontstop vocabulary scratch)"
            )
        spells = []
        if self.spaced_words >= FEWEST_WORDS and (self.pieces_per_word or 0.0) > MOST_PIECES:
            spells.append(f"{self.pieces_per_word:.1f} pieces per word (limit {MOST_PIECES})")
        if self.bytes_per_piece is not None and self.bytes_per_piece < FEWEST_BYTES and not found:
            spells.append(f"{self.bytes_per_piece:.1f} bytes per piece (limit {FEWEST_BYTES:g})")
        if spells:
            found.append(
                f"the tokenizer splits words too finely, into {' and '.join(spells)}: add words to its vocabulary"
                " (dontstop vocabulary extend), or begin with a model of this language (model.path)"
            )
        return found


def read_legibility(metrics: Mapping[str, Any]) -> Legibility | None:
    """Reads the word statistics from the metrics of a prepared corpus; None if an older version prepared it."""
    figures = metrics.get("legibility")
    return Legibility(**figures) if figures else None


def count_sample(texts: Sequence[str], tokenizer: "TextTokenizer") -> Counter[str]:
    """Counts words and tokens in a sample of the texts of a chunk.

    Args:
        texts: all texts of the chunk.
        tokenizer: tokenizer of the model.

    Returns:
        The counts. The key of a count is COUNT followed by a name of FIGURES.
    """
    step = max(1, len(texts) // DOCUMENTS)
    some = [text[:CHARACTERS] for text in texts[::step][:DOCUMENTS]]
    counts: Counter[str] = Counter()
    for text, encoding in zip(some, tokenizer.backend.encode_batch(some, add_special_tokens=False), strict=True):
        for word, ids in _words(text, encoding.ids, encoding.offsets):
            counts["words"] += 1
            counts["unknown_words"] += tokenizer.unknown is not None and tokenizer.unknown in ids
            if tokenizer.size < SPELLS:
                continue
            is_spaced = not UNSPACED.search(word)
            counts["spaced_words"] += is_spaced
            counts["spaced_pieces"] += len(ids) if is_spaced else 0
            counts["pieces"] += len(ids)
            counts["bytes"] += len(word.encode("utf-8", "replace"))
    return Counter({f"{COUNT}{name}": count for name, count in counts.items()})


def _words(text: str, ids: Sequence[int], offsets: Sequence[tuple[int, int]]) -> Iterator[tuple[str, list[int]]]:
    """Yields each word of a text with its tokens. A token belongs to the word that contains its last character."""
    ends = [end - 1 for _, end in offsets]
    place = 0
    for match in WORD.finditer(text):
        while place < len(ids) and ends[place] < match.start():
            place += 1
        first = place
        while place < len(ids) and ends[place] < match.end():
            place += 1
        yield match.group(), list(ids[first:place])


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
