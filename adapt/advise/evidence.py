"""What advice is based on: sizes, words and losses of the texts, and facts of the tasks."""

from dataclasses import dataclass

from adapt.show.blocks import Block, Table, TextBlock
from adapt.vocabulary.vocabulary_results import Extension


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

    def cells(self) -> list[str]:
        """Formats size, tokens, sampled documents, tokens per word and loss."""
        about = "" if self.is_exact else "about "
        sizes = [millions(self.bytes, "MB"), millions(self.tokens, "M")]
        shown = [size if size == "not known" else about + size for size in sizes]
        return [*shown, f"{self.sampled:,}", f"{self.fertility:.2f}", f"{self.loss:.2f}"]


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

    def cells(self) -> list[str]:
        """Formats name, sizes, copies, tokens per word, loss, and the words that it shares with other texts."""
        shares = {"corpus": self.overlap, "general": self.general_overlap}
        common = ", ".join(f"{name} {share:.1%}" for name, share in shares.items() if share is not None)
        return [
            self.name,
            f"{self.examples:,}",
            f"{self.classes}",
            f"{self.rarest:,}",
            f"{self.leaked} of {self.test:,}",
            f"{self.fertility:.2f}",
            f"{self.loss:.2f}",
            common,
        ]


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

    def blocks(self) -> list[Block]:
        """Shows the texts and the tasks that were looked at."""
        texts = {
            "corpus": self.corpus,
            "general": self.general,
            "pool": self.pool,
            "pool to select from": self.candidates,
        }
        rows = [[name, *text.cells()] for name, text in texts.items() if text]
        header = ["text", "size", "tokens", "sampled documents", "tokens per word", "model loss [nats per token]"]
        note = "Tokens per word and the loss of the model, before training, are of the sampled documents."
        blocks: list[Block] = [Table(header, rows, "Texts", note)] if rows else []
        if self.overlap is not None:
            common = f"Corpus and general text share {self.overlap:.1%} of their most frequent words."
            blocks.append(TextBlock(common))
        if self.tasks:
            header = [
                "task",
                "train examples",
                "classes",
                "examples of rarest class",
                "test texts also in train",
                *header[-2:],
                "frequent words shared with",
            ]
            blocks.append(Table(header, [task.cells() for task in self.tasks], "Tasks"))
        return blocks


def millions(number: float | None, unit: str) -> str:
    """A number in millions, as `1.2 MB`; `not known` for None."""
    return "not known" if number is None else f"{number / 1e6:,.1f} {unit}"
