"""Results of measuring models and texts, as records store them. This module loads nothing heavy."""

from dataclasses import dataclass, field
from typing import Literal

from adapt.runner.record import Record
from adapt.show.blocks import Block, Cell, Table, TextBlock, darkness, estimated, formatted, interval, square
from adapt.support.better import Less

Unit = Literal["token", "byte"]
Text = Literal["domain", "general"]
"""Text that an adapted model is measured on."""
NOT_MEASURED = "fewer than two documents are held out (corpus.heldout_fraction; of TAPT, the text of dev)"
"""Why a loss on the domain is missing."""
FEWEST = 6
"""Documents that an interval needs: n of them all lie on one side of their median with probability 2^(1 - n)."""
Rows = list[list[float]]
Ends = list[list[float | None]]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95% interval; the interval is None where too few documents were measured."""

    value: float
    low: float | None = None
    high: float | None = None

    def text(self, form: str) -> str:
        """The value and the ends of its interval, as `3.24 (3.20 to 3.28)`.

        Args:
            form: of all three numbers, such as `.2f`.
        """
        ends = interval(self.low, self.high, form)
        return f"{self.value:{form}}" + (f" ({ends})" if ends else "")

    def cell(self, form: str) -> Cell:
        """The value, with the interval on the cell's second line."""
        return Cell(f"{self.value:{form}}", interval(self.low, self.high, form))


@dataclass(frozen=True)
class LossChange:
    """Loss on a held-out text before and after a training, on the same documents and masks."""

    text: Text
    predictions: int
    """Number of tokens that are predicted."""
    before: Less[Estimate]
    """Loss before the training [nats per predicted token]."""
    after: Less[Estimate]
    """Loss after the training [nats per predicted token]."""
    change: Less[Estimate]
    """after - before, paired by document."""
    per_byte_before: Less[float | None] = None
    """Loss before the training [nats per byte of text], by which models with other tokens compare; None where the
    length of the texts is not known."""
    per_byte_after: Less[float | None] = None
    """Loss after the training [nats per byte of text]."""
    overlap: Less[int | None] = None
    """Held-out documents that were trained on; None where that is not known."""


@dataclass(frozen=True)
class TextLoss:
    """A model on the held-out sample of a corpus."""

    loss: float | None
    """Nats a predicted token; None where there is no held-out text."""
    documents: int
    predictions: int
    overlap: int | None
    """Held-out documents that the model was trained on; None where that is not known."""
    routed: float | None = None
    """Where the model has parts for each domain: its loss with those of the domain that each document is nearest to
    [nats a predicted token]. `loss` is then that with the parts of the corpus's own domain, or the same as `routed`
    where the model has none for it."""
    routed_right: float | None = None
    """The share of documents that are nearest to their own domain; None where the model has no parts for it."""
    mixed: float | None = None
    """Where the model has experts: its loss with their mixture (`adapt.evaluate.losses`) [nats a predicted token]."""
    loss_per_byte: float | None = None
    """Nats a byte of text (`adapt.evaluate.intervals`), for models with other tokens; None where no length is known."""


@dataclass(frozen=True)
class TaskNeighbours:
    """How often the nearest neighbours of a task's test texts in train have their label."""

    accuracy: float | None
    """The share of test texts with the label of their neighbours; None if no text is left to classify."""
    examples: int
    """Test texts that it is the share of."""
    left_out: int
    """Test texts that stand in train too, whose nearest neighbour is themselves."""


@dataclass(frozen=True)
class ModelsCompared:
    """Several models on several texts.

    Grids have a row a model and a column a text. The ends of 95% intervals are None where there are few documents.
    """

    models: list[str]
    domains: list[str]
    documents: dict[str, int]
    """Measured, by domain."""
    loss: Rows
    """Nats a predicted token, or a byte of text."""
    loss_low: Ends
    loss_high: Ends
    change: Rows
    """Against the first model, paired by document: on text that a model was not adapted to, what it has forgotten."""
    change_low: Ends
    change_high: Ends
    overlap: dict[str, dict[str, int | None]] = field(default_factory=dict)
    """Measured documents that were trained on, by model and domain; None: not known."""
    knn: dict[str, dict[str, float | None]] | None = None
    """Accuracy of nearest neighbours by task and model; None where there are no tasks."""
    knn_left_out: dict[str, int] | None = None
    """How many test texts of each task were left out."""
    pseudo_perplexity: dict[str, dict[str, float | None]] | None = None
    """Pseudo-perplexity by domain and model; empty if nobody asked for it."""
    unit: Unit = "token"
    """What the losses are of: a byte of text where the models have different tokens."""

    def blocks(self, record: Record) -> list[Block]:
        """Losses by model and domain (Don't Stop Pretraining, table 12), changes, nearest neighbours, perplexity."""
        blocks: list[Block] = [self._losses()]
        if len(self.models) > 1:
            blocks.append(self._changes())
        if self.knn:
            note = "Accuracy of the nearest neighbours in train, by the cosine of mean features of the frozen model."
            blocks.append(self._by_model("Nearest neighbours", self.knn, "{:.1%}", note))
            left = {task: count for task, count in (self.knn_left_out or {}).items() if count}
            for task, count in left.items():
                blocks.append(TextBlock(f"{task}: {count} test texts that are also in train are left out"))
        if self.pseudo_perplexity:
            note = "Every token masked separately (Salazar et al. 2020); of causal models, perplexity. Lower is better."
            blocks.append(self._by_model("Pseudo-perplexity", self.pseudo_perplexity, "{:,.2f}", note))
        return [*blocks, TextBlock(f"picture: {record.path / 'matrix.png'}")]

    @property
    def _digits(self) -> int:
        return 4 if self.unit == "byte" else 3

    def _losses(self) -> Table:
        per = "byte" if self.unit == "byte" else "predicted token"
        columns = [darkness([row[column] for row in self.loss]) for column in range(len(self.domains))]
        rows: list[list[Cell | str]] = [
            [
                model,
                *(
                    Cell(cell.text, cell.small, shade=columns[column][number])
                    for column, cell in enumerate(self._cells(self.loss, self.loss_low, self.loss_high, number, ""))
                ),
            ]
            for number, model in enumerate(self.models)
        ]
        note = f"Nats per {per} with 95% intervals over documents. The darkest is the lowest of a column."
        return Table(["model, text", *self.domains], rows, "Loss on held-out text", note)

    def _changes(self) -> Table:
        """Each model's loss against the first model's. Pairing by document shows more than the losses' intervals."""
        rows: list[list[Cell | str]] = [
            [model, *self._cells(self.change, self.change_low, self.change_high, number, "+")]
            for number, model in enumerate(self.models)
            if number
        ]
        note = "Paired by document, with 95% intervals. On text that a model was not adapted to: what it has forgotten."
        return Table(["model, text", *self.domains], rows, f"Change of the loss against {self.models[0]}", note)

    def _cells(self, values: Rows, low: Ends, high: Ends, row: int, sign: str) -> list[Cell]:
        columns = zip(values[row], low[row], high[row], strict=True)
        return [estimated(*column, f"{sign}.{self._digits}f") for column in columns]

    def _by_model(self, title: str, of: dict[str, dict[str, float | None]], form: str, note: str) -> Table:
        rows = [
            [name, *(formatted(by_model.get(model), form) for model in self.models)] for name, by_model in of.items()
        ]
        return Table(["", *self.models], rows, title, note)


@dataclass(frozen=True)
class Similar:
    """Square matrices over the domains, in order."""

    domains: list[str]
    documents: list[int]
    """Size of each domain's sample."""
    overlap: Rows
    """Share of the top 10,000 unigrams (no stop words) of one domain that are among the other's (the paper's text)."""
    jaccard: Rows
    """|A and B| / |A or B| of all words in at least 3 documents (the paper's code)."""
    cross_loss: Rows
    """Row model, column text: how much worse a unigram language model of one domain predicts the words of another than
    the other's own does [nats a word]; 0 on the diagonal. The Kullback-Leibler divergence of their word frequencies."""
    model_loss: Rows | None = None
    """Row model, column text: mean held-out loss [nats a predicted token]; None where there are no models."""

    def blocks(self, record: Record) -> list[Block]:
        """A heatmap for each matrix over the domains, and where the picture is."""
        measured: tuple[tuple[Rows | None, str, str, bool], ...] = (
            (self.overlap, "Shared words", "Share of the 10,000 most frequent words that two domains share.", True),
            (self.jaccard, "Jaccard index", "Jaccard index of all their words.", True),
            (self.cross_loss, "Cross loss", "Of a unigram model, nats per word. Row: model; column: text.", False),
            (
                self.model_loss,
                "Loss of the adapted models",
                "Nats per predicted token. Row: model; column: text.",
                False,
            ),
        )
        tables = [square(self.domains, of, title, note, is_share) for of, title, note, is_share in measured if of]
        return [*tables, TextBlock(f"picture: {record.path / 'similarity.png'}")]
