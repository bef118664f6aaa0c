"""Describes the text of a corpus: languages, duplicates, repeated lines, and how well a tokenizer covers its words.

Training on text in a language that the model does not know, or on many copies of the same pages, raises no error. So
`dontstop init` and `dontstop chain plan` show a profile of the text before anything runs, and stage `prepare` records
it. `adapt.corpus.profile_sample` measures the profile.

A model learns nothing about a word that its tokenizer does not know, and little about a word that is split into letters
or bytes. `Legibility` counts such words on a sample of each chunk. Byte-level tokenizers know every word, so the number
of pieces per word is measured too.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adapt.model.tokenize.text_tokenizer import TextTokenizer


UNCLEAR = "unclear"
"""Name of the language of documents whose language was not recognised."""
SHOWN = 5
"""Number of languages that are shown. The shares of all other languages are added up as `others`."""
FEWEST = 8
"""Minimum number of documents in a sample for which warnings are given."""
MOST_FOREIGN = 0.2
"""Maximum share of text in languages that the model's card does not name. If the card names no language, the limit
applies to all text that is not in the most frequent language. A larger share causes a warning."""
MOST_DUPLICATES = 0.05
"""Maximum share of duplicates among the documents. A larger share causes a warning."""
MOST_BOILERPLATE = 0.1
"""Maximum share of the text that is in lines that many documents share. A larger share causes a warning."""
_MULTILINGUAL = {"multilingual", "mul"}


@dataclass(frozen=True)
class TextProfile:
    """Properties of a sample of a corpus, after cleaning."""

    documents: int
    """Number of documents of the sample."""
    languages: dict[str, float]
    """Share of the text (by number of characters) in each language, keyed by ISO 639 code, in descending order. The key
    `unclear` stands for documents whose language was not recognised."""
    duplicates: float
    """Share of documents with the same text as an earlier document, apart from case and white space."""
    near_duplicates: float
    """Share of documents that are near copies of an earlier document, but not equal (see `corpus.near_threshold`)."""
    boilerplate: float
    """Share of the text (by number of characters) that is in lines that many documents of the sample contain."""
    model_languages: list[str] = field(default_factory=list)
    """Languages that the model's card names. Empty if the card names no language."""

    def faults(self, deduplicate: str = "none") -> list[str]:
        """Returns one warning, with advice, for each property that makes the text unsuitable for training.

        Args:
            deduplicate: value of `corpus.deduplicate`. There is no warning about duplicates that this setting removes
                after the profile was measured.
        """
        if self.documents < FEWEST:
            return []
        found = self._language_faults()
        if self.duplicates > MOST_DUPLICATES and deduplicate == "none":
            found.append(
                f"{self.duplicates:.0%} of the documents are duplicates: remove them with corpus.deduplicate: exact"
            )
        if self.near_duplicates > MOST_DUPLICATES and deduplicate != "near":
            found.append(
                f"{self.near_duplicates:.0%} of the documents are near copies of others: remove them with"
                " corpus.deduplicate: near"
            )
        if self.boilerplate > MOST_BOILERPLATE:
            found.append(
                f"{self.boilerplate:.0%} of the text is in lines that many documents share: remove menus and notices"
                " with the cleaning block boilerplate, and other lines with your own cleaning block"
            )
        return found

    def summary(self) -> str:
        """Returns the profile in one line, without the number of documents."""
        named = ", ".join(f"{code} {share:.0%}" for code, share in shown(self.languages).items())
        copies = f"duplicates {self.duplicates:.0%}, near duplicates {self.near_duplicates:.0%}"
        return f"languages {named or 'none'}; {copies}; lines shared by many documents {self.boilerplate:.0%}"

    def _language_faults(self) -> list[str]:
        known = {code: share for code, share in self.languages.items() if code != UNCLEAR}
        model = set(self.model_languages)
        if not known or model & _MULTILINGUAL or len(model) > SHOWN:
            return []
        keep = f"keep one language (corpus.cleaning: language: {{keep: [{next(iter(known))}]}})"
        if not model:
            second = sum(list(known.values())[1:])
            if second <= MOST_FOREIGN:
                return []
            return [
                f"the text has several languages ({_named(known)}): {keep}, or start from a multilingual model"
                " (model.path)"
            ]
        foreign = {code: share for code, share in known.items() if code not in model}
        if sum(foreign.values()) <= MOST_FOREIGN:
            return []
        names = ", ".join(sorted(model))
        return [
            f"the model's card names the language {names}, but {sum(foreign.values()):.0%} of the text is in other"
            f" languages ({_named(foreign)}): start from a model for the languages of the text (model.path), add words"
            f" of the text to the vocabulary (dontstop vocabulary extend), or keep only the text in {names}"
            " (corpus.cleaning: language)"
        ]


def read_profile(metrics: Mapping[str, Any]) -> TextProfile | None:
    """Reads the profile from the metrics of a prepared corpus; None if an older version prepared it."""
    figures = metrics.get("profile")
    return TextProfile(**figures) if figures else None


def joined_profiles(profiles: Sequence[TextProfile | None]) -> TextProfile | None:
    """Returns the profile of several sources together; None if there is no source or a source was not measured.

    Shares are weighted by the numbers of documents of the samples. Copies in different sources are not counted.
    """
    known = [profile for profile in profiles if profile]
    total = sum(profile.documents for profile in known)
    if not known or len(known) < len(profiles) or not total:
        return None

    def mean(name: str) -> float:
        return float(sum(getattr(profile, name) * profile.documents for profile in known) / total)

    languages: dict[str, float] = {}
    for profile in known:
        for code, share in profile.languages.items():
            languages[code] = languages.get(code, 0.0) + share * profile.documents / total
    duplicates, near, boilerplate = map(mean, ("duplicates", "near_duplicates", "boilerplate"))
    shares = dict(sorted(languages.items(), key=lambda entry: -entry[1]))
    return TextProfile(total, shares, duplicates, near, boilerplate, known[0].model_languages)


def shown(languages: Mapping[str, float]) -> dict[str, float]:
    """Returns the shares of the SHOWN most frequent languages, and the sum of all other shares as `others`."""
    first = dict(list(languages.items())[:SHOWN])
    rest = sum(list(languages.values())[SHOWN:])
    return {**first, **({"others": rest} if rest else {})}


def _named(languages: Mapping[str, float]) -> str:
    return ", ".join(f"{code} {share:.0%}" for code, share in shown(languages).items())


DOCUMENTS, CHARACTERS = 50, 400
"""Size of the sample of a chunk: maximum number of documents (spread over the chunk), and number of characters that are
used from each document."""
FEWEST_WORDS = 100
"""Minimum number of words in a sample for which a warning is given."""
MOST_UNKNOWN = 0.02
"""Maximum share of words with a part that the tokenizer does not know. A larger share causes a warning."""
MOST_PIECES = 2.5
"""Maximum mean number of pieces per word, in scripts with spaces between words. A larger number causes a warning.
Tokenizers made for the language of the text give 1.1 to 1.7 pieces per word."""
FEWEST_BYTES = 2.0
"""Minimum mean number of bytes per piece. A smaller number causes a warning. Tokenizers made for the language of the
text give 3 to 5 bytes per piece."""
SPELLS = 1000
"""Minimum vocabulary size of a tokenizer for which pieces are counted [tokens]. Tokenizers with a smaller vocabulary
split all words into letters or bytes by design."""
MARKS = (
    r"\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0971-\u0dff"
    r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"
)
"""Characters, as part of a pattern, that Python does not count as letters: accents, vowel signs, and the blocks of the
scripts that have many vowel signs."""
SIGNS = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Chinese characters and Japanese kana, as part of a pattern. Each of these characters counts as a word."""
WORD = re.compile(rf"[{SIGNS}]|(?:(?![{SIGNS}])[^\W\d_]|[{MARKS}])+")
"""Pattern of a word: a run of letters with their accents and vowel signs, or one Chinese character or kana."""
UNSPACED = re.compile(rf"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff{SIGNS}]")
"""Pattern of a character of a script without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Chinese,
Japanese."""
FIGURES = ("words", "unknown_words", "spaced_words", "spaced_pieces", "pieces", "bytes")
COUNT = "sample_"
"""Prefix of the counts named in FIGURES when they are stored in a chunk's `Counter`. The prefix distinguishes their
keys from the other keys of the counter."""


@dataclass(frozen=True)
class Legibility:
    """How a tokenizer splits the words of a sample of a corpus. A word is a run of letters.

    If the tokenizer has fewer than SPELLS tokens, only `words` and `unknown_words` are counted; all other counts are 0.
    """

    words: int
    unknown_words: int
    """Number of words in the sample with a part that the tokenizer does not know."""
    spaced_words: int
    """Number of words in scripts with spaces between words."""
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
        """Joins the statistics of several sources; None if there is no source or a source was not measured."""
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
                f"{self.unknown_share:.1%} of the words have a part that the tokenizer does not know (limit"
                f" {MOST_UNKNOWN:.0%}), and the model learns nothing from these words: start from a model for the"
                " language and script of the text (model.path), or train a tokenizer and a model on the text (dontstop"
                " vocabulary scratch)"
            )
        spells = []
        if self.spaced_words >= FEWEST_WORDS and (self.pieces_per_word or 0.0) > MOST_PIECES:
            spells.append(f"{self.pieces_per_word:.1f} tokens per word (maximum {MOST_PIECES})")
        if self.bytes_per_piece is not None and self.bytes_per_piece < FEWEST_BYTES and not found:
            spells.append(f"{self.bytes_per_piece:.1f} bytes per token (minimum {FEWEST_BYTES:g})")
        if spells:
            found.append(
                f"the tokenizer splits words too finely, with {' and '.join(spells)}: add words to its vocabulary"
                " (dontstop vocabulary extend), or start from a model for the language of the text (model.path)"
            )
        return found


def read_legibility(metrics: Mapping[str, Any]) -> Legibility | None:
    """Reads the word statistics from the metrics of a prepared corpus; None if an older version prepared it."""
    figures = metrics.get("legibility")
    return Legibility(**figures) if figures else None


def count_sample(texts: Sequence[str], tokenizer: "TextTokenizer") -> Counter[str]:
    """Counts words and tokens in a sample of the texts of a chunk.

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
