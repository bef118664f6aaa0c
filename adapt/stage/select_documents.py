"""Defines the stages that select documents from a pool, and compare the selected documents with random ones.

- `target` collects the text that the selected documents should resemble.
- `select` selects the documents.
- `selection` compares the selected documents with random documents.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from adapt.advise.corpus_sample import sample_corpus
from adapt.config import Config
from adapt.corpus import corpora, minhash
from adapt.corpus.files.manifest import check_listed
from adapt.model.start import Start
from adapt.objective.table import measured_what
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.runner.files import link_or_copy, write_atomically
from adapt.runner.record import Record
from adapt.runner.stage import deciding
from adapt.select import TEXTS_FILE
from adapt.select.choose import Budget, Choice, TokenCounter, choose
from adapt.select.markup import Mark, foreign_marks, markup_warnings, without_marks
from adapt.select.pool import MeasuredText, Pool, guards
from adapt.select.selection import Given
from adapt.select.table import selections_name, steps_of
from adapt.show.blocks import Block, FindingBlock, Findings, Table, TextBlock, formatted, summary
from adapt.stage import context, document_vectors, prepare_text
from adapt.stage.text_sources import Files, TaskTexts, excluding, lines_of, write_texts
from adapt.support.better import More
from adapt.support.errors import DataError
from adapt.terminal.console import log

SAMPLE = 2000
"""Number of documents of the pool that are searched for the target's markup."""


@dataclass(frozen=True)
class TargetWritten:
    """Result of `Target`. The file `texts.jsonl` has one target text per line."""

    texts: int
    markup: list[Mark]
    """Markup and words that are frequent in the target and rare in the pool. Markup was removed, words were not."""


@dataclass(frozen=True, eq=False)
class Target(Stage[TargetWritten]):
    """Collects the target, which is text of tasks or of files. Markup that the pool lacks is removed."""

    kind = "target"
    takes = ONE_CPU

    name: str
    text: TaskTexts | Files
    pool: Files
    """Pool to select from."""

    def what(self) -> Mapping[str, Any]:
        """Returns the settings for reading the files of target and pool.

        The key also depends on the content of these files and on the text of tasks, because input stages provide both.
        """
        target = {"target": self.text.reading} if isinstance(self.text, Files) else {}
        return {**target, "pool": self.pool.reading}

    def run(self, folder: Path, done: Done) -> Outcome[TargetWritten]:
        """Writes the target texts, after removing markup that does not occur in a sample of the pool.

        Raises:
            DataError: there is no text, or files have changed since they were listed.
        """
        texts = self._read(done)
        marks = foreign_marks(texts, sample_corpus(self.pool.manifest, self.pool.corpus, SAMPLE).texts)
        for line in markup_warnings(marks):
            log(f"warning: {line}")
        write_texts(folder, ({"id": n, "text": text} for n, text in enumerate(without_marks(texts, marks))))
        return Outcome(TargetWritten(len(texts), marks))

    def texts(self, done: Done) -> list[str]:
        """Returns all target texts, in order. The stage must have finished."""
        return [line["text"] for line in lines_of(done[self].path)]

    def _read(self, done: Done) -> list[str]:
        if isinstance(self.text, TaskTexts):
            return [line["text"] for line in lines_of(done[self.text].path)]

        corpus = self.text.corpus
        found = [str(text) for text in Pool(self.text.manifest, corpus, guards(corpus, [], []).sieve)]
        check_listed(self.text.manifest)
        if not found:
            raise DataError(
                "no text of select.target_paths is left after cleaning and removing the texts of corpus.decontaminate",
                "check select.target_paths, select.target_text_field, corpus.cleaning and corpus.decontaminate",
            )
        return found


@dataclass(frozen=True)
class Selected:
    """Result of `Select`.

    The file `texts.jsonl` has one selected document per line, in the pool's order (`adapt.select`).
    """

    documents: int
    tokens: int
    """Number of tokens of all documents, including special tokens."""
    pool: int
    """Number of documents of the pool from which the selection chose."""
    near_copies: int
    """Number of documents that were skipped as near copies of a document with a higher score."""
    passed: list[int]
    """Number of documents that each selection passed on to the next selection. The last selection has no entry."""
    dropped: dict[str, int]
    """Number of documents of the pool that were dropped, keyed by reason."""
    bad: dict[str, int]
    """Number of unreadable records of the pool, keyed by reason."""
    evaluation_texts: dict[str, Any]
    """Number of evaluation texts that were searched for in the pool, keyed by set and file."""
    figures: list[dict[str, float]]
    """Metrics of each selection, from `Selection.figures`."""


@dataclass(frozen=True, eq=False)
class Select(Stage[Selected]):
    """Selects documents of a pool, up to a budget of documents or tokens."""

    kind = "select"
    version = 8  # since version 8, scores depend neither on length nor on the target's markup

    name: str
    config: Config
    """Configuration: `select` and `seed`, and, for selections that score with a model, `objective` and `evaluation`."""
    pool: Files
    target: Target
    tokens: context.Tokens
    unseen: TaskTexts | None
    """Texts of task splits that must not be selected."""
    measured: tuple[Stage[prepare_text.Prepared], ...]
    """Stages with held-out text on which models are measured. Documents of this text must not be selected."""
    start: Start | None
    """Initial model of the job. None if the selection does not need this model."""
    others: Mapping[str, Start]
    """Further models that the selection needs, keyed by path."""
    vectors: document_vectors.VectorStages | None = None
    """Stages that compute the vectors that the selection reads. None if it reads no vectors."""
    like: "Select | None" = None
    """Another selection, whose number of tokens is the budget of this one. None if a budget is configured."""

    @property
    def way(self) -> str:
        """Names of the selections, in order."""
        return selections_name(steps_of(self.config))

    def what(self) -> Mapping[str, Any]:
        select, config = self.config.select, self.config
        models = [start.digest for start in (self.start, *self.others.values()) if start]
        by_model = {"models": models, **measuring_what(config)}
        steps = [step.what() for step in steps_of(config)]
        return {
            "steps": steps,
            **({"keep": select.keep} if len(steps) > 1 else {}),
            "budget": {name: getattr(select, name) for name in ("per_example", "documents", "tokens")},
            "corpus": self.pool.reading,
            "near": corpora.dedup_identity(replace(config.corpus, deduplicate="near")),
            "tokens": {**self.tokens.tokenizer, "ends": self.tokens.form.ends},
            "seed": config.seed,
            **(by_model if models else {}),
            **({"min_recall": select.min_recall} if self.vectors else {}),
        }

    def needs(self) -> Mapping[str, float] | None:
        """Requires one CPU, or the whole cluster if a model scores, an index is searched, or the pool is large."""
        is_small = Pool(self.pool.manifest, self.pool.corpus).is_small
        return {"CPU": 1} if is_small and not self.start and not self.vectors else None

    def run(self, folder: Path, done: Done) -> Outcome[Selected]:
        """Scores the pool and writes the selected documents.

        Raises:
            ConfigError, DataError: the selection cannot select from this pool, the pool is too small, or files have
                changed since they were listed.
        """
        from adapt.corpus.cluster_calls import Cluster

        corpus = excluding(self.pool.corpus, self.unseen, done)
        files = {done[text].path: text.files for text in self.measured if isinstance(text, prepare_text.Prepare)}
        guard = guards(
            corpus,
            [done[text].path for text in self.measured],
            [MeasuredText(path, text.manifest, text.corpus) for path, text in files.items()],
        )
        pool = Pool(self.pool.manifest, corpus, guard.sieve, cluster=Cluster(self.config.resources, folder))
        # checks first for an empty pool, because a selection would only report that the pool has no words
        if next(iter(pool), None) is None:
            pool.check_usable()
        target = self.target.texts(done)
        budget = self._budget(done, len(target))
        starts = {**({"": self.start} if self.start else {}), **self.others}
        models = {path: start.made(done) for path, start in starts.items()}
        vectors = self.vectors.made(done) if self.vectors else None
        choice = _choose(Given(pool, target, self.config, models, vectors), self.tokens.made(done), budget)
        tally = pool.tally
        pool.check_usable()
        _check_enough(choice, tally.kept, budget, self.like is not None)
        in_order = sorted(choice.taken, key=lambda taken: taken.document.id)
        write_texts(folder, (taken.line(pool.place(taken.document)) for taken in in_order))
        return Outcome(
            Selected(
                documents=len(choice.taken),
                tokens=choice.tokens,
                pool=tally.kept,
                near_copies=choice.near,
                passed=list(choice.passed),
                dropped=dict(tally.dropped),
                bad=dict(tally.bad),
                evaluation_texts={name: dict(counts) for name, counts in guard.evaluation_texts.items()},
                figures=list(choice.figures),
            )
        )

    def _budget(self, done: Done, texts: int) -> Budget:
        select = self.config.select
        if self.like:
            return Budget(tokens=done[self.like].result.tokens)
        if select.per_example:
            return Budget(select.per_example * texts, per_text=select.per_example)
        return Budget(select.documents, select.tokens)


def measuring_what(config: Config) -> dict[str, Any]:
    """Returns the settings that, with the model, determine losses on texts. They are part of a stage's key."""
    return {"objective": measured_what(config), "sequence_length": config.evaluation.sequence_length}


def _choose(given: Given, tokens: context.Tokens, budget: Budget) -> Choice:
    """Chooses documents from the pool until the budget is full."""
    config = given.config
    selections = [step.selection for step in steps_of(config)]
    alike = minhash.DuplicateRule.of(replace(config.corpus, deduplicate="near"))
    count = TokenCounter(tokens.pretrained, tokens.form.ends)
    return choose(selections, given, budget, config.select.keep, alike, count)


def _check_enough(choice: Choice, documents: int, budget: Budget, is_control: bool) -> None:
    """Checks that the pool filled the budget.

    If the documents are the random documents of a comparison, the check requires only one document.
    """
    if choice.is_full or (is_control and choice.taken):
        return
    wanted = f"{budget.documents} documents" if budget.documents is not None else f"{budget.tokens} tokens"
    raise DataError(
        f"the selection should have {wanted}, but only {len(choice.taken)} of the pool's {documents} documents can be"
        f" selected ({choice.tokens} tokens; {choice.near} other documents are near copies of these)",
        "lower the budget (select.per_example, select.documents or select.tokens), give a larger pool, or train on all"
        " of it (tapt.pool_paths)",
    )


@dataclass(frozen=True)
class Nearness:
    """Metrics that compare a set of texts with the target. A metric that was not measured is None."""

    documents: int
    tokens: int
    kl: float | None
    """KL(target || texts) of hashed n-grams [nats per n-gram]."""
    auc: float | None
    """AUC of a classifier that separates the texts from the target, on texts it was not trained on."""
    shared_words: float | None
    """Overlap between the most frequent words of texts and target, from 0 to 1, on equal amounts of both."""
    distinct: float
    """Number of distinct word pairs divided by the number of all word pairs, on equal amounts of text."""
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
    """Metrics of random documents with the same number of tokens. None if the selection itself is random."""
    target: Nearness
    """Metrics of the target's own texts."""
    markup: list[str]
    """Warnings about markup and words that are frequent in the target and rare in the pool."""
    kl_reduction: More[float | None]
    """KL reduction: how much closer the selection is to the target than random documents are [nats per n-gram]."""

    def blocks(self, record: Record) -> list[Block]:
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
    "Random documents come from the same pool and have the same number of tokens. "
    "KL divergence: from the target's hashed n-grams to the text's, in nats per n-gram; lower is closer. "
    "Classifier AUC: how well a classifier tells the text from the target; 0.5 if it cannot. "
    "Shared words: share of the most frequent words that are also among the target's. "
    "Distinct word pairs: number of distinct word pairs divided by all word pairs, in equal amounts of text. "
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
    """Makes a table of some selected documents, each next to the most similar text of the target.

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
    tokens: context.Tokens
    """Tokenizer that counts the tokens of the texts."""

    def what(self) -> Mapping[str, Any]:
        by_model = {"model": self.start.digest, **measuring_what(self.config)} if self.start else {}
        return {"seed": self.config.seed, **by_model, **deciding("scikit-learn")}

    def run(self, folder: Path, done: Done) -> Outcome[SelectionJudged]:
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
    """Returns the KL reduction: how much closer the selection is to the target than random text [nats per n-gram]."""
    if random is None or random.kl is None or selection.kl is None:
        return None
    return random.kl - selection.kl
