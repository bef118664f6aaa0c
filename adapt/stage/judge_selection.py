"""Stage `selection` compares selected documents with random documents."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adapt.advise.corpus_sample import sample_corpus
from adapt.config import Config
from adapt.model.start import Start
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.runner.files import link_or_copy, write_atomically
from adapt.runner.record import Record
from adapt.runner.stage import deciding
from adapt.select import TEXTS_FILE
from adapt.select.choose import TokenCounter
from adapt.select.markup import markup_warnings
from adapt.show.blocks import Block, FindingBlock, Findings, Table, TextBlock, formatted, summary
from adapt.stage.context import Tokens
from adapt.stage.select_documents import Select, Target, measuring_what
from adapt.stage.text_sources import lines_of
from adapt.support.better import More


@dataclass(frozen=True)
class Nearness:
    """Metrics that compare a set of texts with the target. A metric that was not measured is None."""

    documents: int
    tokens: int
    kl: float | None
    """KL(target || texts) of hashed n-grams [nats per gram]."""
    auc: float | None
    """AUC of a classifier that separates the texts from the target, on texts it was not trained on."""
    shared_words: float | None
    """Share of the most frequent words that texts and target have in common, in equal amounts of text."""
    distinct: float
    """Number of different word pairs divided by the number of all word pairs, in equal amounts of text."""
    distance: float | None
    """Diversity: mean of 1 - cosine over all pairs of 1,000 random texts; see `adapt.select.selection_metrics`."""
    loss: float | None
    """Held-out loss of the job's initial model [nats per predicted token]."""


EXAMPLES_FILE, MAP_FILE = "examples.json", "map.json"
EXAMPLES = 20


@dataclass(frozen=True)
class SelectionJudged:
    """Result of `JudgeSelection`: a comparison of the selected documents with random documents.

    The folder contains `texts.jsonl`, `examples.json` with examples to read, and `map.json` with the positions of some
    texts on a map, keyed by set of texts.
    """

    way: str
    """Names of the selections in order, joined by hyphens."""
    documents: int
    """Number of selected documents."""
    tokens: int
    """Number of tokens of the selected documents."""
    pool: int
    """Number of documents of the pool that could be selected."""
    near_copies: int
    """Number of documents that were left out as near copies of a selected document."""
    dropped: dict[str, int]
    """Number of documents that were left out, keyed by reason."""
    selection: Nearness
    """How close the selected documents are to the target."""
    random: Nearness | None
    """Metrics of random documents with as many tokens. None if the selection itself is random."""
    target: Nearness
    """Metrics of the target's own texts."""
    markup: list[str]
    """Warnings about markup and words that are frequent in the target and rare in the pool."""
    kl_reduction: More[float | None]
    """KL reduction: how much closer the selection is to the target than random documents are [nats per gram]."""

    def blocks(self, record: Record) -> list[Block]:
        """Shows what was selected, how close it is to the target compared with random documents, and examples."""
        judged = {f"selected ({self.way})": self.selection, "random": self.random, "target": self.target}
        warned = [FindingBlock("Markup", line, "warning") for line in self.markup]
        blocks: list[Block] = [
            *summary(*self._sentences()),
            *([Findings(warned)] if warned else []),
            nearness_table({name: of for name, of in judged.items() if of}),
        ]
        if best := example_table("The highest-ranked documents", record.path):
            blocks.append(best)
        files = (f"Selected documents: {record.path / TEXTS_FILE}", f"Examples to read: {record.path / EXAMPLES_FILE}")
        return [*blocks, *map(TextBlock, files)]

    def _sentences(self) -> list[str]:
        """Returns sentences on how much was selected, and how much closer it is to the target than random documents."""
        said = f"Selected {self.documents:,} of {self.pool:,} documents ({self.tokens:,} tokens) with {self.way}."
        if self.kl_reduction is None:
            return [said]
        closer = "closer to" if self.kl_reduction > 0 else "further from"
        return [
            said,
            f"They are {abs(self.kl_reduction):.3f} nats per n-gram {closer} the target than random documents of the"
            " pool (reduction of the KL divergence).",
        ]


NEARNESS_COLUMNS = {
    "documents": "{:,}",
    "tokens": "{:,}",
    "KL divergence": "{:.3f}",
    "classifier AUC": "{:.3f}",
    "shared words": "{:.1%}",
    "distinct word pairs": "{:.1%}",
    "diversity": "{:.3f}",
    "model loss": "{:.3f}",
}
NEARNESS_NOTE = (
    "Random documents come from the same pool and have as many tokens. "
    "KL divergence: from the target's hashed n-grams to the text's, in nats per n-gram; lower is closer. "
    "Classifier AUC: how well a classifier tells the text from the target; 0.5 if it cannot. "
    "Shared words: share of the most frequent words that are also among the target's. "
    "Distinct word pairs: share of different pairs of words, in equal amounts of text. "
    "Diversity: mean of 1 - cosine over all pairs of 1,000 random texts (TF-IDF in 50 dimensions). "
    "Model loss: held-out loss of the model before training, in nats per token."
)
SHOWN, WIDTH = 5, 100
"""Number of documents that the example table shows, and length of their excerpts [characters]."""


def nearness_table(judged: Mapping[str, Nearness]) -> Table:
    """Makes a table that compares selected and random documents with the target, with a row per set of texts."""
    rows = []
    for name, of in judged.items():
        figures = (of.documents, of.tokens, of.kl, of.auc, of.shared_words, of.distinct, of.distance, of.loss)
        forms = NEARNESS_COLUMNS.values()
        rows.append([name, *(formatted(figure, form) for figure, form in zip(figures, forms, strict=True))])
    return Table(
        ["text", *NEARNESS_COLUMNS], rows, "Selected text compared with random text and the target", NEARNESS_NOTE
    )


def example_table(title: str, folder: Path) -> Table | None:
    """Makes a table of selected documents, each with the most similar text of the target.

    Returns None if the folder has no file of examples.
    """
    try:
        examples = json.loads((folder / EXAMPLES_FILE).read_text(encoding="utf-8"))[:SHOWN]
    except OSError:
        return None
    rows = [
        [f"{example['rank']}", f"{example['score']:.3f}", _line(example["text"]), _line(example["nearest"])]
        for example in examples
    ]
    return Table(["rank", "score", "document", "most similar text of the target"], rows, title, words=True)


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True, eq=False)
class JudgeSelection(Stage[SelectionJudged]):
    """Compares a selection with random documents."""

    kind = "selection"
    version = 5  # since version 5, the AUC is measured on windows, and the map excludes texts of evaluation sets
    takes = ONE_CPU

    name: str
    config: Config
    chosen: Select
    control: Select | None
    """Selection of random documents with the same number of tokens. None if the selection itself is random."""
    target: Target
    start: Start | None
    """Model whose loss on the texts is measured. None if no loss is measured."""
    tokens: Tokens
    """Tokenizer that counts the tokens of the texts."""

    def what(self) -> Mapping[str, Any]:
        """Returns the model and the seed."""
        by_model = {"model": self.start.digest, **measuring_what(self.config)} if self.start else {}
        return {"seed": self.config.seed, **by_model, **deciding("scikit-learn")}

    def run(self, folder: Path, done: Done) -> Outcome[SelectionJudged]:
        """Links the selected texts into the folder, measures all sets of texts, and writes examples and the map."""
        from adapt.select import selection_metrics as metrics

        chosen, target = done[self.chosen], self.target.texts(done)
        link_or_copy(chosen.path / TEXTS_FILE, folder / TEXTS_FILE)
        lines = sorted(lines_of(chosen.path), key=lambda line: (-line["score"], line["id"]))
        taken, scores = [line["text"] for line in lines], [line["score"] for line in lines]
        sets = {"selection": taken, "target": target}
        if self.control:
            sets["random"] = [line["text"] for line in lines_of(done[self.control].path)]
        mixed = {name: metrics.in_random_order(texts, self.config.seed) for name, texts in sets.items()}
        pool = sample_corpus(self.chosen.pool.manifest, self.chosen.pool.corpus, metrics.SAMPLE)
        vectors = metrics.word_vectors({"pool": pool.texts, **mixed}, self.config.seed)
        tokens, start = self.tokens.made(done), self.start.made(done) if self.start else None
        count = TokenCounter(tokens.pretrained, tokens.form.ends)
        measured = metrics.set_figures(sets, mixed, vectors, count, self.config, start)
        figures = {name: Nearness(**known) for name, known in measured.items()}
        places = {
            name: found.round(3).tolist() for name, found in metrics.map_places(vectors, self.config.seed).items()
        }
        write_atomically(folder / MAP_FILE, json.dumps(places))
        found = metrics.examples(taken, scores, target, EXAMPLES)
        content = [{**asdict(example), "id": lines[example.rank - 1]["id"]} for example in found]
        write_atomically(folder / EXAMPLES_FILE, json.dumps(content, ensure_ascii=False, indent=1))
        random, selection = figures.get("random"), figures["selection"]
        return Outcome(
            SelectionJudged(
                way=self.chosen.way,
                documents=chosen.result.documents,
                tokens=chosen.result.tokens,
                pool=chosen.result.pool,
                near_copies=chosen.result.near_copies,
                dropped=chosen.result.dropped,
                selection=selection,
                random=random,
                target=figures["target"],
                markup=markup_warnings(done[self.target].result.markup),
                kl_reduction=_reduction(random, selection),
            )
        )


def _reduction(random: Nearness | None, selection: Nearness) -> float | None:
    """Returns the KL reduction: how much closer to the target the selection is than random text [nats per gram]."""
    if random is None or random.kl is None or selection.kl is None:
        return None
    return random.kl - selection.kl
