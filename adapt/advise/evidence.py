"""What advice is based on: sizes, words and losses of the texts, and facts of the tasks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TextEvidence:
    """A corpus, from a sample of it. None stands for what cannot be told without reading all of it."""

    documents: int | None
    bytes: int | None
    """Of text, UTF-8."""
    tokens: int | None
    is_exact: bool
    """Whether these were counted, and not estimated."""
    sampled: int
    """Documents that were looked at."""
    fertility: float
    """Pieces a word or mark (Rust et al., arXiv 2012.15613)."""
    loss: float
    """Of the model on it [nats a predicted token]."""


@dataclass(frozen=True)
class TaskEvidence:
    """A labelled task; all but `test` and `leaked` is of its train split."""

    name: str
    examples: int
    tokens: int
    classes: int
    rarest: int
    """Examples of the rarest class."""
    test: int
    """Test examples."""
    leaked: int
    """Test texts that also stand in train."""
    fertility: float
    loss: float
    overlap: float | None
    """Share of the most frequent words in common with as much text of the corpus."""
    general_overlap: float | None
    """The same with general text."""


@dataclass(frozen=True)
class Evidence:
    """All of it. None stands for what is not configured."""

    tasks: list[TaskEvidence]
    corpus: TextEvidence | None = None
    general: TextEvidence | None = None
    pool: TextEvidence | None = None
    """Unlabelled text of the task's kind (tapt.pool_paths)."""
    overlap: float | None = None
    """Share of the most frequent words that as much text of corpus and of general text have in common."""
