"""Defines the results of measuring models and texts, as stored in records. Imports no large libraries."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

from adapt.evaluate.verdict import LOWER_RATE
from adapt.runner.record import Record
from adapt.show.blocks import Block, Cell, Table, TextBlock, formatted, heatmap, heldout_note, interval, summary
from adapt.support.better import Less, More

Unit = Literal["token", "byte"]
LossUnit = Literal["nats per token", "bits per byte"]
BITS_PER_NAT = 1 / math.log(2)
"""Factor from nats to bits: 1 nat is 1.442695 bits."""
Text = Literal["domain", "general"]
"""Kind of text on which an adapted model is measured."""
NOT_MEASURED = "fewer than two documents are held out (corpus.heldout_fraction, or the dev split for TAPT)"
"""Reason that is shown if the loss on the domain was not measured."""
FEWEST = 6
"""Minimum number of documents for an interval. With n documents, all values lie on the same side of the true median
with probability 2^(1 - n), which is below 5% for n >= 6."""
FEW_DOCUMENTS = 30
"""Fewer held-out documents than this lead to a warning, because losses and their intervals are then unreliable."""
NEIGHBOURS = 10
"""Number of nearest train examples, by cosine of mean features, that vote on the label of a text."""
Rows = list[list[float]]
Ends = list[list[float | None]]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95% interval. The ends are None if too few documents were measured."""

    value: float
    low: float | None = None
    high: float | None = None

    def text(self, form: str) -> str:
        """Formats the value and its interval, such as `3.24 (3.20 to 3.28)`."""
        ends = interval(self.low, self.high, form)
        return f"{self.value:{form}}" + (f" ({ends})" if ends else "")

    def cell(self, form: str) -> Cell:
        """Returns a table cell with the value, and the interval on its second line."""
        return Cell(f"{self.value:{form}}", interval(self.low, self.high, form))


@dataclass(frozen=True)
class LossChange:
    """Loss on held-out text before and after a training run, measured on the same documents and masks."""

    text: Text
    predictions: int
    """Number of tokens that the model predicts in the text."""
    before: Less[Estimate]
    """Loss before the training [nats per predicted token]."""
    after: Less[Estimate]
    """Loss after the training [nats per predicted token]."""
    change: Less[Estimate]
    """Change of the loss, after - before, paired by document [nats per predicted token]."""
    bits_per_byte_before: Less[float | None] = None
    """Loss before the training [bits per byte of text]. In this unit, models with different tokenizers can be compared.
    None if the length of the texts is not known."""
    bits_per_byte_after: Less[float | None] = None
    """Loss after the training [bits per byte of text]; None if the length of the texts is not known."""
    overlap: Less[int | None] = None
    """Number of held-out documents that the model was trained on; None if it is not known."""
    of: str = ""
    """What the loss measures, such as replaced-token detection; empty if the model predicts tokens. Losses that measure
    different things cannot be compared."""
    figures_before: dict[str, float] = field(default_factory=dict)
    """Further metrics of the objective before the training (`TextLoss.figures`)."""
    figures_after: dict[str, float] = field(default_factory=dict)
    """Further metrics of the objective after the training."""
    fix: str = ""
    """Advice if the training made the model worse on the text that it was trained on; else empty."""
    chose: float | None = None
    """Loss of the exported model on the documents that `training.stop` used to choose it [nats per predicted token].
    This loss is biased low, so all other losses are measured on other documents. None if the model was not chosen by
    a measurement."""
    documents: int | None = None
    """Number of held-out documents that were measured. None in records of earlier versions."""

    def sentence(self, name: str = "your domain", with_fix: bool = True) -> str:
        """Returns a sentence that says whether the loss fell or rose, or that its interval includes 0.

        Args:
            name: name of the text, unless it is general text.
            with_fix: whether to say what to change if the training made the model worse on its own text.
        """
        is_general = self.text == "general"
        loss = f"loss of {self.of}" if self.of else "loss"
        subject = f"{loss.capitalize()} on general text" if is_general else f"Held-out {loss} on {name}"
        before, after, change = self.before.value, self.after.value, self.change
        if change.low is None or change.high is None:
            went = f"{subject} went from {before:.2f} to {after:.2f} nats per token"
            return f"{went}. Too few documents are held out for a 95% interval of the change."
        ends = f"95% interval of the change: {interval(change.low, change.high, '+.2f')}"
        if change.low <= 0 <= change.high:
            losses = f"{before:.2f} nats per token before and {after:.2f} after"
            said = f"{subject} did not change measurably: {losses} ({ends})"
            if is_general:
                return f"{said}. The model did not measurably forget general text."
            return f"{said}.{self._found()}"
        verb = "fell" if change.high < 0 else "rose"
        said = f"{subject} {verb} from {before:.2f} to {after:.2f} nats per token ({ends})"
        if not is_general:
            fix = f". {self.fix or LOWER_RATE}" if with_fix else ""
            worse = f": the training made the model worse on this text{fix}"
            return f"{said}{worse if verb == 'rose' else ''}.{self._found()}"
        return f"{said}: the model forgot general text." if verb == "rose" else f"{said}: the model did not forget it."

    def detected(self, name: str) -> list[str]:
        """Formats a metric of replaced-token detection before and after the training."""
        form = "{:.3f}" if name == "auc" else "{:.1%}"
        return [formatted(of.get(name), form) for of in (self.figures_before, self.figures_after)]

    def further(self) -> list[str]:
        """Formats bits per byte, or the metrics of replaced-token detection, before and after the training."""
        if self.of:
            return [*self.detected("recall"), *self.detected("precision"), *self.detected("auc")]
        return [formatted(value, "{:.3f}") for value in (self.bits_per_byte_before, self.bits_per_byte_after)]

    def _found(self) -> str:
        """Describes how well the model finds replaced tokens; returns an empty text for other objectives."""
        if "auc" not in self.figures_after:
            return ""
        (before, after), (found, finds) = self.detected("auc"), self.detected("recall")
        return (
            f" The model ranks a replaced token above an original one with probability {after} ({before} before), and"
            f" marks {finds} of the replaced tokens ({found} before)."
        )


FOUND = [f"{name} {when}" for name in ("found", "precision", "AUC") for when in ("before", "after")]
"""Table columns with metrics of replaced-token detection, before and after the training."""
LOSS_NOTE = (
    "Mean over predicted tokens, with 95% intervals over documents; lower is better. Bits per byte of text also compare"
    " models with different tokenizers."
)
DETECTION_NOTE = (
    "Mean binary cross entropy over all tokens, some of which a fixed generator replaced; with 95% intervals over"
    " documents; lower is better. It cannot be compared with the loss of a language model. Found: share of the replaced"
    " tokens that the model marks. Precision: share of the marked tokens that are replaced. AUC: probability that a"
    " replaced token has a higher score than an original one."
)


def loss_table(losses: Sequence[LossChange], domain: str, title: str = "", more: str = "") -> Table:
    """Makes a table with a row per text: losses, and bits per byte or metrics of detection, before and after training.

    Args:
        losses: changes of the loss.
        domain: name of the domain's text in the table.
        title: title of the table.
        more: sentence to add to the note.
    """
    detects = any(of.of for of in losses)
    names = {"domain": domain, "general": "general text"}
    note = DETECTION_NOTE if detects else LOSS_NOTE
    further = FOUND if detects else ["bits per byte before", "bits per byte after"]
    rows: list[list[Cell | str]] = [
        [names[of.text], of.before.cell(".3f"), of.after.cell(".3f"), of.change.cell("+.3f"), *of.further()]
        for of in losses
    ]
    counted = heldout_note({names[of.text]: of.documents for of in losses if of.documents})
    return Table(["text", "loss before", "loss after", "change", *further], rows, title, note + more + counted)


@dataclass(frozen=True)
class Retrieved:
    """Result of measuring the sentence vectors of one model by retrieval."""

    recall_at_10: More[float]
    """Share of the relevant texts that are among the first 10 documents, mean over queries."""
    mrr: More[float]
    """Mean over queries of 1 / rank of the first relevant text, where all documents are ranked."""
    ndcg_at_10: More[float]
    """Normalized discounted cumulative gain of the first 10 documents (Järvelin and Kekäläinen 2002), mean over
    queries. A relevant text at rank r gains 1 / log2(r + 1)."""
    mean_cosine: Less[float]
    """Mean cosine similarity of the vectors of two different documents (Ethayarajh 2019, arXiv 1909.00512). It is 0 for
    isotropic vectors, and 1 if all vectors have the same direction."""
    isoscore: More[float | None]
    """IsoScore of the documents' vectors (Rudman et al. 2022, arXiv 2108.07344): roughly the share of
    dimensions in which the vectors vary equally, from 0 to 1. None with fewer than two documents."""
    queries: int
    documents: int
    """Number of documents that were searched."""
    pooling: str
    """Pooling of the vectors: `mean` or `cls`."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of rows of the pairs that were left out, keyed by reason."""


@dataclass(frozen=True)
class MeasureChange:
    """A measure of retrieval before and after a training run, with 95% intervals over queries."""

    before: More[Estimate]
    after: More[Estimate]
    change: More[Estimate]
    """after - before, paired by query."""


Measure = Literal["recall_at_10", "mrr", "ndcg_at_10"]
MEASURES: dict[Measure, str] = {"recall_at_10": "recall@10", "mrr": "MRR", "ndcg_at_10": "nDCG@10"}
"""Names of the measures of retrieval, keyed by field."""


@dataclass(frozen=True)
class RetrievalChange:
    """Retrieval with a model's sentence vectors before and after a training run, on the same queries and documents."""

    measures: dict[Measure, MeasureChange]
    before: Retrieved
    after: Retrieved

    def sentence(self) -> str:
        """Returns a sentence that says whether nDCG@10 rose or fell, or that its interval includes 0."""
        of = self.measures["ndcg_at_10"]
        low, high = of.change.low, of.change.high
        values = f"from {of.before.value:.3f} to {of.after.value:.3f}"
        if low is None or high is None:
            return f"Retrieval (nDCG@10) went {values}. There are too few queries for a 95% interval of the change."
        ends = f"95% interval of the change: {interval(low, high, '+.3f')}"
        if low <= 0 <= high:
            return f"Retrieval (nDCG@10) did not change measurably: {values} ({ends})."
        return f"Retrieval (nDCG@10) {'rose' if low > 0 else 'fell'} {values} ({ends})."

    def table(self, title: str = "") -> Table:
        """Makes a table with a row per measure."""
        rows: list[list[Cell | str]] = [
            [MEASURES[name], of.before.text(".3f"), of.after.text(".3f"), of.change.text("+.3f")]
            for name, of in self.measures.items()
        ]
        for name, label in (("mean_cosine", "mean cosine of two documents"), ("isoscore", "IsoScore")):
            old, new = getattr(self.before, name), getattr(self.after, name)
            if old is not None and new is not None:
                rows.append([label, f"{old:.3f}", f"{new:.3f}", f"{new - old:+.3f}"])
        return Table(["measure", "before", "after", "change"], rows, title, self.note())

    def note(self) -> str:
        """Returns a note for the table: what was measured, and the number of rows that were left out."""
        after = self.after
        left = ", ".join(f"{count:,} {reason}" for reason, count in after.left_out.items())
        return (
            f"{after.queries:,} queries, {after.documents:,} documents, {after.pooling} pooling. 95% intervals over"
            " queries; higher is better. Isotropy: if the vectors use all directions, the mean cosine of two documents"
            f" is low and IsoScore is high.{f' Rows left out: {left}.' if left else ''}"
        )


def bits_of_earlier(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts fields that earlier versions stored in nats per byte into bits per byte."""
    return {
        EARLIER.get(name, name): BITS_PER_NAT * value if name in EARLIER and value is not None else value
        for name, value in values.items()
    }


EARLIER = {
    "per_byte_before": "bits_per_byte_before",
    "per_byte_after": "bits_per_byte_after",
    "loss_per_byte": "bits_per_byte",
}
"""Names of fields in bits per byte, keyed by the names that earlier versions used for nats per byte."""


@dataclass(frozen=True)
class TextLoss:
    """Losses of a model on the held-out sample of a corpus."""

    loss: float | None
    """Loss [nats per predicted token]; None if there is no held-out text. If the model has separate parameters per
    domain, such as adapters, the loss is measured with the parameters of the corpus's domain or, if the model has none
    for this domain, with those of the nearest domain."""
    documents: int
    """Number of measured documents of the corpus."""
    predictions: int
    """Number of predicted tokens in the measured documents."""
    overlap: int | None
    """Number of held-out documents that the model was trained on; None if it is not known."""
    routed: float | None = None
    """Loss with the model's parameters for the domain that is nearest to each document [nats per predicted token];
    None if the model has no separate parameters per domain."""
    routed_right: float | None = None
    """Share of documents whose nearest domain is their own; None if the model has no parameters for their domain."""
    mixed: float | None = None
    """Loss with the mixture of all experts (`adapt.evaluate.losses`) [nats per predicted token]; None if the model has
    no experts."""
    bits_per_byte: float | None = None
    """Loss [bits per byte of text]. In this unit, models with different tokenizers can be compared
    (`adapt.evaluate.measure_model`). None if the length of the texts is not known."""
    figures: dict[str, float] = field(default_factory=dict)
    """Further metrics of the objective, such as `recall` of replaced-token detection."""


@dataclass(frozen=True)
class TaskNeighbours:
    """Result of nearest-neighbour classification of a task's test texts."""

    accuracy: float | None
    """Share of test texts whose label is predicted correctly by their nearest train texts; None if no test text can be
    used."""
    examples: int
    """Number of test texts that were classified."""
    left_out: int
    """Number of test texts that were left out because they are also in train."""


@dataclass(frozen=True)
class Similar:
    """Similarities of domains. Each matrix has a row and a column per domain, in order."""

    domains: list[str]
    documents: list[int]
    """Number of documents in the sample of each domain."""
    overlap: Rows
    """Share of the 10,000 most frequent words of one domain that are also among the 10,000 most frequent words of the
    other domain, as in the paper. Stop words are left out."""
    jaccard: Rows
    """Jaccard index |A and B| / |A or B| of all words in at least 3 documents, as in the paper's code."""
    cross_loss: Rows
    """Kullback-Leibler divergence of word frequencies [nats per word]: how much worse words of the column's domain are
    predicted by the word frequencies of the row's domain than by the word frequencies of their own domain."""
    model_loss: Rows | None = None
    """Mean held-out loss of the model of the row's domain on text of the column's domain [nats per predicted token];
    None if there are no models."""

    def blocks(self, record: Record) -> list[Block]:
        """Returns a sentence on the most and the least similar domains, a table per matrix, and the heatmap's path."""
        shared = "Share of the 10,000 most frequent words of one domain that are among those of the other."
        jaccard = "Words that occur in both domains, divided by words that occur in either."
        cross = (
            "How much worse the column's text is predicted by the word frequencies of the row's domain than by its own."
        )
        measured: tuple[tuple[Rows | None, str, str, bool], ...] = (
            (self.overlap, "Shared frequent words", shared, True),
            (self.jaccard, "Jaccard index of all words", jaccard, True),
            (self.cross_loss, "Cross loss [nats per word]", f"{cross} Lower is more similar.", False),
            (
                self.model_loss,
                "Held-out loss of adapted models [nats per token]",
                "Row: the domain that the model was adapted to. Column: the text that it is measured on.",
                False,
            ),
        )
        tables = [heatmap(self.domains, of, title, note, is_share) for of, title, note, is_share in measured if of]
        picture = TextBlock(f"Picture of the matrices: {record.path / 'similarity.png'}")
        return [*summary(self._sentence()), *tables, picture]

    def _sentence(self) -> str:
        """Returns a sentence that names the pairs of domains that share the most and the fewest words."""
        pairs = sorted((self.overlap[one][two], one, two) for one, two in combinations(range(len(self.domains)), 2))
        if not pairs:
            return ""

        def said(pair: tuple[float, int, int]) -> str:
            share, one, two = pair
            return f"{self.domains[one]} and {self.domains[two]} ({share:.0%} of their 10,000 most frequent words)"

        if len(pairs) == 1:
            share, one, two = pairs[0]
            return f"{self.domains[one]} and {self.domains[two]} share {share:.0%} of their 10,000 most frequent words."
        return f"Most words are shared by {said(pairs[-1])}, fewest by {said(pairs[0])}."
