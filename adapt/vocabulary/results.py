"""What was found about the words of domains."""

from dataclasses import dataclass


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


@dataclass(frozen=True)
class Analyzed:
    """The words of each domain."""

    vocabulary: int
    """Tokens that the tokenizer knows."""
    domains: dict[str, DomainWords]
    """By name; general text is `(general)`."""


@dataclass(frozen=True)
class Extended:
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
    fertility_after: float
    length_saved: float
    """Share of the pieces of the corpus' words that is saved."""
    init: str
    first: list[str]
    """Some of the new tokens, as people write them, the best first."""
    parameters_added: int | None = None
    """Trained numbers that the model has more: rows, and a module."""
    compute_saved: float | None = None
    """Share of a training's FLOPs that the same text saves: it is shorter, and the model is larger. None where the
    model's dimensions cannot be told."""
