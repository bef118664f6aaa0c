"""What advice is based on: sizes, words and losses of the texts, and facts of the tasks."""

from dataclasses import dataclass

from adapt.vocabulary.results import Extension


@dataclass(frozen=True)
class TextEvidence:
    """A corpus, from a sample of it. None stands for what cannot be told without reading all of it."""

    documents: int | None
    bytes: int | None
    """Size of the text as UTF-8."""
    tokens: int | None
    is_exact: bool
    """Whether these were counted, and not estimated."""
    sampled: int
    """Number of documents in the sample."""
    fertility: float
    """Pieces a word or mark (Rust et al., arXiv 2012.15613)."""
    loss: float
    """The model's loss on the sample [nats a predicted token]."""
    extension: Extension | None = None
    """What its words would save as tokens, at the elbow of that curve; None where that is not asked, or no word would
    save any (`adapt.vocabulary`)."""


@dataclass(frozen=True)
class TaskEvidence:
    """A labelled task. All figures but `test` and `leaked` are of its train split."""

    name: str
    examples: int
    tokens: int
    classes: int
    rarest: int
    """Number of examples of the rarest class."""
    test: int
    """Number of test examples."""
    leaked: int
    """Number of test texts that also stand in train."""
    fertility: float
    loss: float
    overlap: float | None
    """Share of its most frequent words that are also among those of as much text of the corpus."""
    general_overlap: float | None
    """Share of its most frequent words that are also among those of as much general text."""


@dataclass(frozen=True)
class Evidence:
    """All evidence that the rules look at. None stands for what is not configured."""

    tasks: list[TaskEvidence]
    corpus: TextEvidence | None = None
    general: TextEvidence | None = None
    pool: TextEvidence | None = None
    """Unlabelled text of the task's kind (tapt.pool_paths)."""
    candidates: TextEvidence | None = None
    """A pool of which a part may be selected (select.pool_paths)."""
    overlap: float | None = None
    """Share of the most frequent words that as much text of corpus and of general text have in common."""
