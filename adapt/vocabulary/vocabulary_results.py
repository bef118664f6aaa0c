"""Results of the vocabulary stages: broken words, what more tokens save, and curves of pieces per word as a picture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from adapt.runner.record import OneModel, Record
from adapt.show.blocks import Block, Drawing, Figures, Table, TextBlock, formatted, summary
from adapt.show.drawing import canvas, color, style, svg
from adapt.support.better import Less, More
from adapt.support.errors import DataError

SHOWN = 10
"""Number of words that are shown of each kind."""


@dataclass(frozen=True)
class BrokenWord:
    """A frequent word that the tokenizer breaks."""

    word: str
    count: int
    pieces: list[str]
    """As people write them."""


@dataclass(frozen=True)
class Extension:
    """What a number of tokens would do."""

    tokens: int
    """Words that become tokens, those first that save most pieces."""
    fertility: float
    """Pieces a word that would be left."""
    length_saved: float
    """Share of the pieces that would be saved."""
    compute_saved: float | None
    """Share of a training's FLOPs that the same text would save: it is shorter, and the head has more rows. None where
    the model's dimensions cannot be told."""


@dataclass(frozen=True)
class DomainWords:
    """How the words of a domain are broken. A word has a letter or a digit, and ends where the tokenizer's do."""

    bytes: int
    """Size of the text that was read, as UTF-8."""
    words: int
    distinct: int
    """Different words."""
    pieces: int
    fertility: float
    """Pieces a word (Rust et al., arXiv 2012.15613)."""
    fragment_score: float
    """Pieces a different word, each counted once, of those that come `vocabulary.min_count` times."""
    broken_share: float
    """Share of the words that are more than one piece."""
    unknown_share: float
    """Share of the words of which the tokenizer does not know a part."""
    byte_share: float
    """Share of the pieces that are no whole characters: bytes, and parts of characters."""
    length_overhead: float | None
    """How many more pieces a byte it has than general text, as a share; None without general text."""
    worst: list[BrokenWord]
    """Those that would save most pieces as tokens."""
    candidates: int
    """Words that would save pieces as tokens, and come `vocabulary.min_count` times; at most 20,000."""
    elbow: int
    """Number of tokens after which a further one saves less than the mean of all candidates."""
    curve: list[Extension]
    """By growing number of tokens, from none to all candidates; the elbow is among them."""

    @property
    def at_elbow(self) -> Extension:
        """What the tokens up to the elbow would do."""
        return next(each for each in self.curve if each.tokens == self.elbow)

    def sentence(self, name: str) -> str:
        """Says how often words are split, and what new tokens would save."""
        best = self.at_elbow
        said = (
            f"The tokenizer splits {self.broken_share:.1%} of the words of {name} into several tokens"
            f" ({self.fertility:.2f} tokens per word)"
        )
        if not best.tokens:
            return f"{said}. No further token would make its text shorter."
        tokens = "1 token" if best.tokens == 1 else f"{best.tokens:,} tokens"
        return f"{said}. Adding {tokens} would make its text {best.length_saved:.1%} shorter."

    def cells(self) -> list[str]:
        """Formats the cells of WORD_COLUMNS."""
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
        """Makes the table of what more tokens would save, by their number."""
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
        """Makes the table of the words that would save most tokens if each were one token."""
        rows = [[each.word, f"{each.count:,}", " ".join(each.pieces)] for each in self.worst[:SHOWN]]
        title = f"{name}: words that cost most tokens"
        return Table(["word", "occurrences", "split into"], rows, title, words=True)


@dataclass(frozen=True)
class Analyzed:
    """The words of each domain."""

    vocabulary: int
    """Tokens that the tokenizer knows."""
    domains: dict[str, DomainWords]
    """By name; general text is `(general)`."""

    def blocks(self, record: Record) -> list[Block]:
        """Shows how often words are split, and tables of words and of what more tokens would save."""
        rows = [[name, *words.cells()] for name, words in self.domains.items()]
        series = [(name, number) for number, name in enumerate(self.domains)]
        drawing = Drawing(self._curves(record.name), "Tokens per word by number of tokens added; the dot is the elbow.")
        names = {name: "general text" if name == "(general)" else name for name in self.domains}
        said = [words.sentence(names[name]) for name, words in self.domains.items()]
        return [
            *summary(*said),
            Table(["text", *WORD_COLUMNS], rows, "How the tokenizer splits words", WORD_NOTE),
            Figures([drawing], series),
            *(words.extensions(name) for name, words in self.domains.items()),
            *(words.worst_words(name) for name, words in self.domains.items()),
            TextBlock(f"Picture of tokens per word: {record.path / 'vocabulary.png'}"),
        ]

    def _curves(self, name: str) -> Callable[[], str]:
        def draw() -> str:
            with style():
                figure, axes = canvas(6.4, 4.0)
                for number, words in enumerate(self.domains.values()):
                    tokens, fertility = zip(*((each.tokens, each.fertility) for each in words.curve), strict=True)
                    axes.plot(tokens, fertility, color=color(number))
                    best = words.at_elbow
                    axes.plot([best.tokens], [best.fertility], "o", color=color(number))
                axes.set_xscale("symlog", linthresh=10)
                axes.set(xlabel="tokens added", ylabel="tokens per word")
                return svg(figure, f"{name}-vocabulary")

        return draw


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
    "A word has a letter or a digit and ends where the tokenizer's words end. Distinct words are counted once each. "
    "Byte tokens are parts of characters. Elbow: the number of new tokens after which a further token saves less than "
    "the average candidate. The last two columns are what adding that many tokens would save: the share of the text's "
    "tokens, and the share of the FLOPs of training on the same text."
)


def compute_saved(saved: float | None, added: int | None = None) -> list[str]:
    """Says how much less compute training on the same text takes; returns nothing if that is not known."""
    if saved is None:
        return []
    parameters = f"The model has {added:,} parameters more. " if added is not None else ""
    less = "less" if saved >= 0 else "more"
    return [f"{parameters}Training on the same text takes {abs(saved):.1%} {less} compute."]


@dataclass(frozen=True)
class Extended(OneModel):
    """What became of a vocabulary. The model and the tokenizer are in the stage's folder, all words in `words.json`."""

    words: int
    """Candidates that became tokens."""
    steps: int
    """Further tokens, which merges need on their way to those."""
    vocabulary: int
    """Tokens that the tokenizer has now."""
    rows: int
    """Rows of the model's embeddings now."""
    candidates: int
    """Words that could have become tokens."""
    left_out: int
    """Candidates that were chosen and did not become tokens: texts without them would change, or no word has them."""
    fertility_before: float
    """Pieces a word of the corpus."""
    fertility_after: Less[float]
    length_saved: More[float]
    """Share of the pieces of the corpus' words that is saved."""
    init: str
    first: list[str]
    """Some of the new tokens, as people write them, the best first."""
    parameters_added: Less[int | None] = None
    """Trained numbers that the model has more: rows, and a module."""
    compute_saved: More[float | None] = None
    """Share of a training's FLOPs that the same text saves: it is shorter, and the model is larger. None where the
    model's dimensions cannot be told."""

    def blocks(self, record: Record) -> list[Block]:
        """Shows what became of the vocabulary, and where the model is."""
        said = (
            f"Added {self.words:,} words of the corpus as tokens: its text is {self.length_saved:.1%} shorter"
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
                f"{self.left_out:,} words were left out, because other text would be split differently or no word"
                " contains them."
            )
        return [*summary(said), *(TextBlock(line) for line in [*lines, f"Model and tokenizer: {record.path}"])]


def empty_corpus(name: str) -> DataError:
    """The error for a corpus without words."""
    return DataError(
        f"the text of {name} has no words after cleaning, beside what is held out",
        "check corpus.paths, corpus.text_field and corpus.cleaning",
    )


def draw_curves(domains: Mapping[str, DomainWords], file: Path) -> None:
    """Writes a curve for each domain as PNG, its elbow marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, words in domains.items():
        (line,) = axes.plot([each.tokens for each in words.curve], [each.fertility for each in words.curve], label=name)
        for each in words.curve:
            if each.tokens == words.elbow:
                axes.plot(each.tokens, each.fertility, "o", color=line.get_color())
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xlabel("tokens added (dot: elbow)")
    axes.set_ylabel("tokens per word")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=120)
