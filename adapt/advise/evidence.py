"""The evidence for advice: sizes, word statistics and losses of the texts, and statistics of the tasks."""

from dataclasses import dataclass

from adapt.show.blocks import Block, Table, TextBlock
from adapt.vocabulary.vocabulary_results import Extension


@dataclass(frozen=True)
class TextEvidence:
    """Sizes, word statistics and loss of a corpus, from a sample.

    A size is None if only reading the whole corpus would show it.
    """

    documents: int | None
    bytes: int | None
    """Size of the corpus's text [bytes of UTF-8]."""
    tokens: int | None
    is_exact: bool
    """Whether `documents`, `bytes` and `tokens` were counted. If not, they are estimates."""
    sampled: int
    """Number of documents in the sample."""
    fertility: float
    """Number of tokens per word or punctuation mark (Rust et al., arXiv 2012.15613)."""
    loss: float
    """The model's loss on the sample [nats per predicted token]."""
    extension: Extension | None = None
    """What new tokens would save, at the number of new tokens where the curve of savings bends (`adapt.vocabulary`).
    None for texts other than `corpus`, and if new tokens would save nothing."""

    padding: float | None = None
    """Share of the positions in the layers that would be padding in a training. None if the model packs documents."""

    def cells(self) -> list[str]:
        """Formats the sizes and statistics as a row of the table of texts, without the name."""
        about = "" if self.is_exact else "about "
        sizes = [millions(self.bytes, "MB"), millions(self.tokens, "M")]
        shown = [size if size == "not known" else about + size for size in sizes]
        return [*shown, f"{self.sampled:,}", f"{self.fertility:.2f}", f"{self.loss:.2f}"]


@dataclass(frozen=True)
class TaskEvidence:
    """Sizes, statistics and loss of a labelled task. All fields except `test` and `leaked` describe the train split."""

    name: str
    examples: int
    tokens: int
    classes: int
    rarest: int
    """Number of train examples of the rarest class. For tasks of kind `tokens`, number of words of the rarest class."""
    test: int
    """Number of test examples."""
    leaked: int
    """Number of test texts that are also in train."""
    fertility: float
    loss: float
    overlap: float | None
    """Share of the task's most frequent words that are also among the most frequent words of the corpus, in samples of
    equal size."""
    general_overlap: float | None
    """Share of the task's most frequent words that are also among the most frequent words of general text, in samples
    of equal size."""

    def cells(self) -> list[str]:
        """Formats the sizes and statistics as a row of the table of tasks."""
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
class ModelFacts:
    """Properties of a model that can be read from the model's files."""

    kind: str = ""
    """`model_type` in the model's config.json."""
    is_decoder: bool = False
    is_instruct: bool = False
    """Whether the model has a chat template."""
    is_sentence_model: bool = False
    """Whether the model's folder is a model folder of sentence-transformers."""
    parameters: int | None = None
    """Number of parameters; None if it is not known."""


@dataclass(frozen=True)
class Evidence:
    """All measurements that the rules of advice use. The field of a text is None if this text is not configured."""

    tasks: list[TaskEvidence]
    corpus: TextEvidence | None = None
    general: TextEvidence | None = None
    pool: TextEvidence | None = None
    """Measurements of unlabelled text of the same kind as the task's text (tapt.pool_paths)."""
    candidates: TextEvidence | None = None
    """Measurements of the pool from which documents may be selected (select.pool_paths)."""
    way: str = "packed"
    """How documents are put into rows for the model: several `packed` into one row; one per row, `padded`; or one per
    row, `by length` (all rows of a pass have the same length)."""
    has_head: bool = True
    """Whether the model has a language-model head. If not, losses are those of a head with random weights."""
    overlap: float | None = None
    """Share of the most frequent words that the corpus and general text have in common, in samples of equal size."""

    def blocks(self) -> list[Block]:
        """Returns the tables of texts and tasks, and how many words corpus and general text have in common."""
        texts = {
            "corpus": self.corpus,
            "general": self.general,
            "pool": self.pool,
            "pool to select from": self.candidates,
        }
        rows = [[name, *text.cells()] for name, text in texts.items() if text]
        header = ["text", "size", "tokens", "sampled documents", "tokens per word", "model loss [nats per token]"]
        note = "Tokens per word and model loss are measured on the sampled documents, before training."
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
    """Formats a number in millions, such as `1.2 MB`, and None as `not known`."""
    return "not known" if number is None else f"{number / 1e6:,.1f} {unit}"
