"""Defines the results of the vocabulary stages: split words, savings by new tokens, and plots of tokens per word."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adapt.runner.record import OneModel, Record
from adapt.show.blocks import Block, Drawing, Figures, Table, TextBlock, formatted, summary
from adapt.show.drawing import canvas, color, style, svg
from adapt.support.better import Less, More
from adapt.support.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 10
"""Maximum number of words in a table or list of a result."""


@dataclass(frozen=True)
class BrokenWord:
    """A frequent word that the tokenizer splits into several pieces."""

    word: str
    count: int
    """Number of occurrences of the word in the text."""
    pieces: list[str]
    """Pieces of the word as readable text."""


@dataclass(frozen=True)
class Extension:
    """What is saved if a certain number of tokens is added to the vocabulary."""

    tokens: int
    """Number of words that become tokens. The words that save most pieces are added first."""
    fertility: float
    """Number of pieces per word with the added tokens."""
    length_saved: float
    """Share of the text's pieces that the added tokens save."""
    compute_saved: float | None
    """Share of the FLOPs of training on the same text that the added tokens save. The text has fewer pieces, but the
    head has more rows. None if the dimensions of the model are not known."""


@dataclass(frozen=True)
class DomainWords:
    """How a tokenizer splits the words of a domain.

    Words begin and end where the tokenizer's pre-tokenizer splits a text. Each word has at least one letter or digit.
    """

    bytes: int
    """Size of the text that was read [bytes of UTF-8]."""
    words: int
    distinct: int
    """Number of distinct words."""
    pieces: int
    fertility: float
    """Number of pieces per word (Rust et al., arXiv 2012.15613)."""
    fragment_score: float
    """Mean number of pieces per distinct word, over the words with at least `vocabulary.min_count` occurrences."""
    broken_share: float
    """Share of the words that are split into several pieces."""
    unknown_share: float
    """Share of the words that have a part that the tokenizer does not know."""
    byte_share: float
    """Share of the pieces that are bytes or other parts of a character."""
    length_overhead: float | None
    """Ratio of pieces per byte to pieces per byte of general text, minus 1; None without general text."""
    worst: list[BrokenWord]
    """Split words that would save most pieces if they became tokens."""
    candidates: int
    """Number of words that would save pieces if they became tokens, among words with at least `vocabulary.min_count`
    occurrences; at most 20,000."""
    elbow: int
    """Number of tokens after which each further token saves less than the mean over all candidates."""
    curve: list[Extension]
    """Savings for several numbers of new tokens, from 0 to all candidates, including the elbow."""

    @property
    def at_elbow(self) -> Extension:
        """Savings if `elbow` tokens are added."""
        return next(extension for extension in self.curve if extension.tokens == self.elbow)

    def sentence(self, name: str) -> str:
        """Returns sentences on how often words are split, and on the share of tokens that new tokens would save."""
        best = self.at_elbow
        said = (
            f"The tokenizer splits {self.broken_share:.1%} of the words of {name} into several tokens"
            f" ({self.fertility:.2f} tokens per word)"
        )
        if not best.tokens:
            return f"{said}. No new token would make this text shorter."
        tokens = "1 token" if best.tokens == 1 else f"{best.tokens:,} tokens"
        return f"{said}. Adding {tokens} would make this text {best.length_saved:.1%} shorter."

    def cells(self) -> list[str]:
        """Formats the statistics as table cells, one per column of WORD_COLUMNS."""
        best = self.at_elbow
        return [
            f"{self.words:,}",
            f"{self.fertility:.3f}",
            f"{self.fragment_score:.3f}",
            f"{self.broken_share:.1%}",
            f"{self.unknown_share:.2%}",
            f"{self.byte_share:.2%}",
            formatted(self.length_overhead, "{:+.1%}"),
            f"{self.elbow:,}",
            f"{best.length_saved:.1%}",
            formatted(best.compute_saved, "{:.1%}"),
        ]

    def extensions(self, name: str) -> Table:
        """Returns the table of savings by number of added tokens."""
        rows = [
            [
                f"{each.tokens:,}" + (" (elbow)" if each.tokens == self.elbow else ""),
                f"{each.fertility:.3f}",
                f"{each.length_saved:.1%}",
                formatted(each.compute_saved, "{:.1%}"),
            ]
            for each in self.curve
        ]
        header = ["tokens added", "tokens per word", "text shorter by", "training compute saved"]
        return Table(header, rows, f"{name}: what adding tokens would save")

    def worst_words(self, name: str) -> Table:
        """Returns the table of the words that would save most tokens if each were one token."""
        rows = [[each.word, f"{each.count:,}", " ".join(each.pieces)] for each in self.worst[:SHOWN]]
        title = f"{name}: words that cost the most tokens"
        return Table(["word", "occurrences", "split into"], rows, title, words=True)


@dataclass(frozen=True)
class Analyzed:
    """How a tokenizer splits the words of each domain."""

    vocabulary: int
    """Number of tokens in the tokenizer's vocabulary."""
    domains: dict[str, DomainWords]
    """Results keyed by domain; the key of general text is `(general)`."""

    def blocks(self, record: Record) -> list[Block]:
        """Formats sentences on how often words are split, and tables of split words and of savings by new tokens."""
        rows = [[name, *words.cells()] for name, words in self.domains.items()]
        series = [(name, number) for number, name in enumerate(self.domains)]

        def draw() -> str:
            with style():
                return svg(_curves(self.domains, color)[0], f"{record.name}-vocabulary")

        drawing = Drawing(draw, "Tokens per word by number of tokens added; the dot is the elbow.")
        names = {name: "general text" if name == "(general)" else name for name in self.domains}
        said = [words.sentence(names[name]) for name, words in self.domains.items()]
        return [
            *summary(*said),
            Table(["text", *WORD_COLUMNS], rows, "How the tokenizer splits words", WORD_NOTE),
            Figures([drawing], series),
            *(words.extensions(name) for name, words in self.domains.items()),
            *(words.worst_words(name) for name, words in self.domains.items()),
            TextBlock(f"Plot of tokens per word: {record.path / 'vocabulary.png'}"),
        ]


WORD_COLUMNS = (
    "words",
    "tokens per word",
    "tokens per distinct word",
    "split words",
    "unknown words",
    "byte tokens",
    "more tokens per byte than general text",
    "tokens to add (elbow)",
    "text shorter by",
    "training compute saved",
)
WORD_NOTE = (
    "A word has a letter or a digit and ends where the tokenizer's words end. Tokens per distinct word count each word "
    "once. Byte tokens are parts of characters. Elbow: the number of new tokens after which a further token saves less "
    "than the average candidate. The last two columns show what adding that many tokens would save: the share of the "
    "text's tokens, and the share of the FLOPs of training on the same text."
)


def compute_saved(saved: float | None, added: int | None = None) -> list[str]:
    """Returns a sentence on the compute saved in training on the same text; an empty list if this is not known."""
    if saved is None:
        return []
    parameters = f"The model has {added:,} more parameters. " if added is not None else ""
    less = "less" if saved >= 0 else "more"
    return [f"{parameters}Training on the same text takes {abs(saved):.1%} {less} compute."]


@dataclass(frozen=True)
class Extended(OneModel):
    """The result of a vocabulary extension.

    The model and the tokenizer are in the folder of the stage, and all new tokens are in `words.json`.
    """

    words: int
    """Number of candidates that became tokens."""
    steps: int
    """Number of additional new tokens that are only intermediate results of BPE merges."""
    vocabulary: int
    """Number of tokens after the extension."""
    rows: int
    """Number of rows of the model's embeddings after the extension."""
    candidates: int
    """Number of candidates: words that could become tokens."""
    left_out: int
    """Number of chosen candidates that did not become tokens, because other texts would be split differently or no word
    contains them."""
    fertility_before: float
    """Tokens per word of the corpus before the extension."""
    fertility_after: Less[float]
    """Tokens per word of the corpus after the extension."""
    length_saved: More[float]
    """Share of the corpus's tokens that the extension saves."""
    init: str
    """How new rows were initialized (`vocabulary.init`)."""
    first: list[str]
    """Some of the new tokens as readable text, the best first."""
    parameters_added: Less[int | None] = None
    """Number of added parameters: new rows, and a module if there is one."""
    compute_saved: More[float | None] = None
    """Share of the FLOPs of training on the same text that the extension saves. The text has fewer tokens, but the
    model is larger. None if the dimensions of the model are not known."""

    def blocks(self, record: Record) -> list[Block]:
        """Returns sentences on the new tokens and the savings, and the path of the model."""
        said = (
            f"Added {self.words:,} words of the corpus as tokens, so its text is {self.length_saved:.1%} shorter"
            f" ({self.fertility_after:.2f} tokens per word instead of {self.fertility_before:.2f})."
        )
        lines = [
            f"The first new tokens: {', '.join(self.first[:SHOWN])}{' ...' if self.words > SHOWN else ''}",
            *compute_saved(self.compute_saved, self.parameters_added),
        ]
        if self.steps:
            lines.append(
                f"{self.steps:,} intermediate tokens were added too, because the tokenizer's merges need them."
            )
        if self.left_out:
            lines.append(
                f"{self.left_out:,} words were left out, because other text would be split differently with them or"
                " because no word of the corpus contains them."
            )
        return [*summary(said), *(TextBlock(line) for line in [*lines, f"Model and tokenizer: {record.path}"])]


def empty_corpus(name: str) -> DataError:
    """Returns the error for a corpus without words."""
    return DataError(
        f"the training documents of {name} contain no words after cleaning (held-out documents are not counted)",
        "check corpus.paths, corpus.text_field and corpus.cleaning",
    )


def draw_curves(domains: Mapping[str, DomainWords], file: Path) -> None:
    """Draws tokens per word by number of added tokens for each domain, marks the elbow, and writes a PNG."""
    figure, axes = _curves(domains, "C{}".format)
    axes.set_xlabel("tokens added (dot: elbow)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=120)


def _curves(domains: Mapping[str, DomainWords], color_of: Callable[[int], str]) -> "tuple[Figure, Axes]":
    """Draws tokens per word by number of added tokens for each domain, and marks the elbow."""
    figure, axes = canvas(6.4, 4.0)
    for number, (name, words) in enumerate(domains.items()):
        tokens, fertility = zip(*((each.tokens, each.fertility) for each in words.curve), strict=True)
        axes.plot(tokens, fertility, color=color_of(number), label=name)
        axes.plot([words.at_elbow.tokens], [words.at_elbow.fertility], "o", color=color_of(number))
    axes.set_xscale("symlog", linthresh=10)
    axes.set(xlabel="tokens added", ylabel="tokens per word")
    return figure, axes


@dataclass(frozen=True)
class TrimmedVocabulary(OneModel):
    """Result of `TrimVocabulary`. The stage's folder contains the model and the tokenizer."""

    before: int
    """Number of tokens before trimming."""
    vocabulary: int
    """Number of tokens after trimming."""
    used: int
    """Number of distinct tokens that occur in the text. The model also keeps other tokens, such as special tokens."""
    parameters_saved: More[int]
    """Number of parameters that were removed from the embeddings and the head."""
    compute_saved: More[float | None] = None
    """Share of a training run's FLOPs that the smaller head saves on the same text. None if the model's dimensions are
    unknown."""

    def blocks(self, record: Record) -> list[Block]:
        """Shows what remains of the vocabulary, and the model's folder."""
        said = (
            f"Removed {self.before - self.vocabulary:,} of {self.before:,} tokens, which your text does not use:"
            f" the model has {self.parameters_saved:,} fewer parameters."
        )
        kept = f"{self.vocabulary:,} tokens remain. {self.used:,} of them occur in the text."
        lines = [kept, *compute_saved(self.compute_saved), f"Model and tokenizer: {record.path}"]
        return [*summary(said), *(TextBlock(line) for line in lines)]
