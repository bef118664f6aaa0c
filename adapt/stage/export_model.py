"""Defines the stage `export`, which writes the adapted model, and compares its losses before and after training."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from adapt.config import Config, what
from adapt.corpus.corpora import dropped_documents
from adapt.corpus.files.manifest import check_listed
from adapt.evaluate.card_metadata import check_metadata
from adapt.evaluate.compared_models import BenchmarksCompared
from adapt.evaluate.export_card import Handover, loss_changes, write_card, write_model
from adapt.evaluate.measurements import (
    NOT_MEASURED,
    LossChange,
    RetrievalChange,
    Text,
    bits_of_earlier,
    loss_table,
)
from adapt.evaluate.retrieval import retrieval_change
from adapt.evaluate.verdict import LOWER_RATE, ChosenStep, Effect, Verdict, choice_of, effect, fix_of_worse
from adapt.handover.export_kind import ExportedModel, HandedOver
from adapt.handover.table import check_kinds, chosen_kinds, handed_rows, kinds_what, need_vectors, write_kinds
from adapt.handover.task_kinds import LabelledText, read_labelled
from adapt.method.table import method_of
from adapt.model.additions.table import stored_additions
from adapt.model.sentence_vectors import SentenceVectors, vectors_what
from adapt.model.start import MODEL_FOLDER
from adapt.objective.table import measured_name, trained_pooling
from adapt.runner import NOTHING, Done, Outcome, Stage
from adapt.runner.record import OneModel, Record, summed_costs
from adapt.show.blocks import (
    NONE,
    TRANSDUCTIVE,
    Block,
    Cell,
    Figures,
    FindingBlock,
    Findings,
    Table,
    TextBlock,
    formatted,
    summary,
)
from adapt.show.drawing import METRICS_LINES, json_lines, loss_curve
from adapt.stage import generate_text, text_sources, training_result
from adapt.stage.benchmarks import CompareBenchmarks
from adapt.stage.context import Context
from adapt.stage.model_evaluation import Evaluate, MeasureRetrieval
from adapt.stage.prepare_text import Prepare, Prepared
from adapt.stage.train import Train
from adapt.support.errors import ConfigError
from adapt.terminal.console import duration, log
from adapt.train.capacity.forecast import Forecast, in_bytes
from adapt.train.phases import PHASE_COLUMNS, PhaseFigures
from adapt.train.restarts import Restarts
from adapt.train.stopping import described


@dataclass(frozen=True)
class Adapted(training_result.Trained, OneModel):
    """Result of an export: the cost of the training, and losses on held-out text before and after training."""

    losses: dict[Text, LossChange] = field(default_factory=dict)
    """Losses on each measured text, before and after training. A text with fewer than two held-out documents has no
    entry."""
    text_faults: list[str] = field(default_factory=list)
    """Problems of the tokenizer with the training text. Each entry also says what to do."""
    documents: int | None = None
    """Number of documents of the training text after cleaning, including held-out documents. None if streamed."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Number of documents dropped from the training text, keyed by reason."""
    pooling: str = ""
    """Pooling that sentence-transformers uses. Empty if the model is not exported for sentence vectors."""
    retrieval: RetrievalChange | None = None
    """Retrieval with the model's sentence vectors before and after training. None without `retrieval.pairs`."""
    phases: list[PhaseFigures] = field(default_factory=list)
    """Phases of the training run, in order. Empty for a run without phases."""
    trains_vectors: bool = False
    """Whether the objective trained sentence vectors. If so, the verdict does not use the held-out loss."""
    choice: ChosenStep | None = None
    """The step whose model is exported, if `training.keep` is `best`. None otherwise."""
    random_parts: str = ""
    """Parts of the model that began with random weights, such as `a random head`. Empty if there are none."""
    handed: list[HandedOver] = field(default_factory=list)
    """Files that were written for each library and format in `export.kinds`."""
    benchmarks: BenchmarksCompared | None = None
    """Scores on standard tasks before and after training. None without `harness.tasks`, `mteb.tasks` and `mteb.own`."""

    def verdict(self, name: str = "your domain") -> Verdict:
        """Returns the verdict: the measured texts on which the model is better than the initial model.

        Args:
            name: name of the domain's text. An objective that trains sentence vectors is judged by retrieval only.
        """
        effects: dict[str, Effect] = {}
        if self.retrieval:
            ndcg = self.retrieval.measures["ndcg_at_10"].change
            effects["retrieval"] = effect(ndcg.low, ndcg.high, higher_is_better=True)
        if self.losses and not self.trains_vectors:
            effects[name] = "unknown"
            effects |= {_named(of.text, name): effect(of.change.low, of.change.high) for of in self.losses.values()}
        effects |= self.benchmarks.effects(self.benchmarks.models[-1]) if self.benchmarks else {}
        lack = "the objective trains sentence vectors and retrieval.pairs is not set" if self.trains_vectors else ""
        start = f"the start model with {self.random_parts}" if self.random_parts else Verdict.reference
        is_worse = effects.get(name) == "worse"
        fix = (self.losses["domain"].fix or LOWER_RATE) if is_worse else ""
        return Verdict(effects, start, lack=lack or NOT_MEASURED, fix=fix)

    def blocks(self, record: Record) -> list[Block]:
        faults = [FindingBlock("warning", fault, "warning") for fault in self.text_faults]
        if skipped := training_result.skipped_steps(asdict(self)):
            faults.append(FindingBlock("warning", f"{skipped}.", "warning"))
        name = "your tasks' text" if "text" in record.inputs else "your domain"
        retrieval = [self.retrieval] if self.retrieval else []
        said = [of.sentence() for of in retrieval] + [
            of.sentence(name, with_fix=self.trains_vectors) for of in self.losses.values()
        ]
        dropped = dropped_documents(self.documents or 0, self.dropped)
        missing = "" if "domain" in self.losses else f"The loss on {name} was not measured: {NOT_MEASURED}."
        return [
            self.verdict(name).block(),
            *summary(
                *described(self.early_end, self.points),
                missing,
                *said,
                self.choice.sentence() if self.choice else "",
            ),
            *(of.table(f"{record.name}: retrieval") for of in retrieval),
            *(self.benchmarks.blocks(record) if self.benchmarks else []),
            *self._losses(record.name, name),
            *([phases_table(self.phases, name)] if self.phases else []),
            *([Findings(faults)] if faults else []),
            *training_result.guesses_table(record),
            *_curve(record),
            *training_result.measured_blocks(self, record.key[:12]),
            *([TextBlock(f"Training text: {dropped}.")] if dropped else []),
            TextBlock(self._cost(record)),
            *([Table(HANDED, handed_rows(self.handed), "Libraries and formats", words=True)] if self.handed else []),
            TextBlock(f"Model: {record.path}"),
            *([TextBlock(f"sentence-transformers uses {self.pooling} pooling.")] if self.pooling else []),
        ]

    @classmethod
    def of_earlier(cls, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Converts the losses per byte in the metrics of an earlier version from nats to bits."""
        return {**metrics, "losses": {text: bits_of_earlier(of) for text, of in metrics.get("losses", {}).items()}}

    def _losses(self, name: str, domain: str) -> list[Block]:
        kind = next((of.of for of in self.losses.values()), "")
        loss = f"loss of {kind} on held-out text" if kind else "loss on held-out text"
        title = f"{name}: {loss} [nats per token]{TRANSDUCTIVE if self.transductive else ''}"
        vectors = " The objective trains sentence vectors instead of this loss, so the loss may rise."
        table = loss_table([*self.losses.values()], domain, title, vectors if self.trains_vectors and not kind else "")
        chose = {text: of.chose for text, of in self.losses.items() if of.chose is not None}
        tables: list[Block] = [table]
        if chose:
            left = " Documents used to choose the exported step are left out: the lowest loss is partly low by chance."
            tables = [replace(table, note=table.note + left)]
            after = {text: self.losses[text].after for text in chose}
            both: list[list[Cell | str]] = [
                [_named(text, domain), f"{loss:.3f}", after[text].cell(".3f")] for text, loss in chose.items()
            ]
            columns = ["text", "on documents used to choose its step", "on other documents"]
            tables.append(Table(columns, both, "Loss of the exported model [nats per token]"))
        return tables

    def _cost(self, record: Record) -> str:
        cost, restarts = record.cost.get("cost"), self.restarts or Restarts()
        parts = [
            f"{self.steps:,} steps",
            f"{self.tokens:,} tokens",
            f"{self.tokens_per_s:,.0f} tokens per second",
            f"{self.data_wait_share:.1%} of the time waiting for data",
            *self._device_time(),
            *([f"{self.mfu:.0%} of the device's peak FLOPs"] if self.mfu is not None else []),
            *([f"peak memory {self.peak_memory_bytes / 2**30:.1f} GiB per device"] if self.peak_memory_bytes else []),
            *([f"cost {cost:,.2f}"] if cost is not None else []),
            *([f"restarts: {restarts.count} (steps repeated: {restarts.redone_steps})"] if restarts.count else []),
            *([f"avoided {' and '.join(restarts.avoided_nodes)}"] if restarts.avoided_nodes else []),
        ]
        return f"Training: {', '.join(parts)}."

    def _device_time(self) -> list[str]:
        """Describes how long devices were reserved, the useful share of this time, and what took the remaining time."""
        held = training_result.held_time_of(self)
        if held is None:
            return [f"{duration(self.device_seconds)} of device time"]
        losses = held.losses()
        why = f" (lost: {losses})" if losses else ""
        return [f"{duration(held.held)} of device time with a goodput of {held.goodput:.1%}{why}"]


def phases_table(phases: Sequence[PhaseFigures], domain: str) -> Table:
    """Makes a table with a row per finished phase of a training run."""
    texts = [text for text in get_args(Text) if any(phase.losses.get(text) is not None for phase in phases)]
    names = {"domain": domain, "general": "general text"}
    rows: list[list[Cell | str]] = [
        [str(number), *phase.cells(), *(formatted(phase.losses.get(text), "{:.3f}") for text in texts)]
        for number, phase in enumerate(phases, start=1)
    ]
    header = ["phase", *PHASE_COLUMNS]
    note = "Losses in nats per predicted token, measured after each phase on the same documents and masks."
    return Table([*header, *(f"loss on {names[text]}" for text in texts)], rows, "Phases of the training", note)


def planned_phases(forecasts: Mapping[Train, "Forecast | None"], done: Done) -> Table | None:
    """Makes a table with a row per phase that will run. Returns None if no phase will run.

    Args:
        forecasts: forecast of each training stage that will run. None if the forecast is not known.
        done: the finished stages.
    """
    rows: list[list[Cell | str]] = []
    for training, forecast in forecasts.items():
        if training.phase and forecast:
            rows_per_step = training.rows_per_step(done)
            steps = (forecast.tokens or 0) // (rows_per_step * training.config.training.sequence_length)
            cells = training.figures(steps, forecast.tokens or 0, rows_per_step).cells()
            known = cells if forecast.tokens else [NONE, NONE, *cells[2:]]
            memory = in_bytes(forecast.fit.memory.total) if forecast.fit else NONE
            rows.append([training.name, *known, memory])
    return Table(["phase", *PHASE_COLUMNS, "memory per device"], rows, "Phases that will run") if rows else None


def _named(text: Text, domain: str) -> str:
    return {"domain": domain, "general": "general text"}[text]


def _curve(record: Record) -> list[Block]:
    """Draws the curve of the training loss over the steps."""
    files = [Path(made["path"]) / METRICS_LINES for made in phase_inputs(record)]
    drawing = loss_curve(files, record.key[:12], "Training loss") if files else None
    return [Figures([drawing])] if drawing else []


def phase_inputs(record: Record) -> list[dict[str, str]]:
    """Returns the kind, key and path of each training stage of an export, in the order of the phases."""
    earlier = [name for name in record.inputs if name.startswith("phases.")]
    names = sorted(earlier, key=lambda name: int(name.removeprefix("phases.")))
    return [record.inputs[name] for name in [*names, "training"] if name in record.inputs]


HANDED = ["kind", "files", "largest difference", "note"]
"""Columns of the table of `export.kinds`."""


def labelled_text(context: Context) -> text_sources.TaskSplit | None:
    """Returns the train split of the configured task, or None if no kind in `export.kinds` is trained on the task.

    Raises:
        ConfigError, DataError, StorageError: the split cannot be read, or a kind cannot learn from it.
    """
    task = context.config.task
    learners = [kind for kind in chosen_kinds(context.config).values() if kind.learns]
    if not task.train or not learners:
        return None
    split = text_sources.TaskSplit.of(task, "train", context.digests)
    for kind in learners:
        kind.check_task(task)
    return split


def between_phases(
    context: Context, training: Train, measured: Mapping[str, Stage[Prepared]], domains: Mapping[str, str] | None = None
) -> tuple[Evaluate, ...]:
    """Builds one evaluation after each phase of a training run, except after the last phase.

    The result is empty for a run without phases.

    Args:
        context: context of the training stage.
        training: training stage of the last phase.
        measured: texts to measure, by name.
        domains: domain of each text, for models with separate parameters per domain.
    """
    return tuple(
        Evaluate.of(context.starting_from(phase), f"after-phase-{number}", measured, domains)
        for number, phase in enumerate(training.phases[:-1], start=1)
    )


@dataclass(frozen=True, eq=False)
class Export(Stage[Adapted]):
    """Writes the trained model as a Hugging Face folder with a model card."""

    kind = "export"
    device_time = "inputs"
    version = 2  # since version 2, records have the losses of each text with intervals
    takes = NOTHING

    name: str
    config: Config
    domain: Stage[Prepared]
    """Prepared text with the held-out documents on which losses are measured. If `text` is None, the model was trained
    on this text."""
    general: Prepare | None
    text: Stage[Prepared] | None
    """Text of tasks that TAPT trained on. None if the model was trained on `domain`."""
    pairs: tuple[generate_text.FilterTexts, ...] = field(default=(), kw_only=True)
    """Stages that write pairs from the domain's documents for `retrieval.pairs`, if `synthesize` writes only pairs. The
    export does not read the pairs."""
    training: Train
    """Training stage that made the model. This field follows the fields with texts, because stages run in the order of
    the fields: the texts are prepared before the training, so that problems in the data are found early."""
    before: Evaluate
    after: Evaluate
    is_transductive: bool
    """Whether the model was trained on the text of the dev and test splits."""
    vectors: SentenceVectors | None = None
    """Settings for sentence-transformers. None if the model is not exported for sentence vectors."""
    retrieved: Mapping[str, MeasureRetrieval] = field(default_factory=dict)
    """Retrieval `before` and `after` the training. Empty without `retrieval.pairs`."""
    phases: tuple[Train, ...] = ()
    """Training stages of the phases before `training`. Empty for a run without phases."""
    between: tuple[Evaluate, ...] = ()
    """Evaluations of the model after each training stage in `phases`."""
    labelled: text_sources.TaskSplit | None = None
    """Train split of the user's task, for kinds in `export.kinds` that are trained on it. None if no kind is."""
    benchmarks: CompareBenchmarks | None = None
    """Scores on standard tasks before and after the training. None if no task is configured."""

    def what(self) -> Mapping[str, Any]:
        transductive = {"transductive": True} if self.is_transductive else {}
        samples = {"bootstrap_samples": self.config.evaluation.bootstrap_samples}
        export, split = self.config.export, self.labelled
        card = {name: value for name in ("license", "language") if (value := getattr(export, name))}
        task = {"labelled": {**what(split.task), "train": split.listed.digest}} if split else {}
        return {**samples, **transductive, **vectors_what(self.vectors), **card, **task, **kinds_what(self.config)}

    def refuse_early(self) -> None:
        """Checks the card's settings, the packages of the export kinds, and that they support the model."""
        check_metadata(self.config.export)
        self._refuse_ignored_modules()
        if self.config.export.kinds:
            check_kinds(self.config, self.training.start.pretrained.model)

    def run(self, folder: Path, done: Done) -> Outcome[Adapted]:
        training, before, after = done[self.training], done[self.before], done[self.after]
        old, new = (before.path, before.result.texts), (after.path, after.result.texts)
        result, samples = training.result, self.config.evaluation.bootstrap_samples
        chose = training_result.chosen_by(result) if self.config.training.decides_by_points else {}
        changes = loss_changes(old, new, samples, measured_name(self.config), chose)
        others = {f"{of.text}_loss": (of.before.value, of.after.value) for of in changes}
        choice = choice_of(result.points, self.config.training, others)
        worse = [of for of in changes if of.text == "domain" and effect(of.change.low, of.change.high) == "worse"]
        changes = [replace(of, fix=self._fix(done)) if of in worse else of for of in changes]
        measured = {label: done[stage] for label, stage in self.retrieved.items()}
        retrieval = retrieval_change(measured["before"], measured["after"], samples) if measured else None
        vectors = self._kept(training.path / MODEL_FOLDER)
        write_model(training.path / MODEL_FOLDER, vectors, folder)
        handed, examples = write_kinds(ExportedModel(folder, self.config, vectors, self._labelled()))
        trainings = [*(done[phase].result for phase in self.phases), training.result]
        figures = self._figures(trainings, done) if self.phases else []
        parts: list[Stage[Any] | None] = [
            self.domain,
            self.general,
            self.text,
            *self.phases,
            self.training,
            self.before,
            *self.between,
            self.after,
            *self.retrieved.values(),
            self.benchmarks,
        ]
        benchmarks = done[self.benchmarks].result if self.benchmarks else None
        handover = Handover(
            config=self.config,
            training=training.record,
            text=done[self.text or self.domain].record,
            is_of_tasks=self.text is not None,
            is_transductive=self.is_transductive,
            changes=changes,
            made_of=[done.records[stage.key] for stage in parts if stage],
            vectors=vectors,
            retrieval=retrieval,
            phases=figures,
            choice=choice,
            examples=examples,
            benchmarks=benchmarks,
            new_head=self.training.has_new_head,
            new_layers=self.training.new_layers,
        )
        write_card(handover, folder)
        text = done[self.text or self.domain].result
        result = Adapted(
            **vars(training_result.whole_run(trainings)),
            losses={change.text: change for change in changes},
            text_faults=text.faults(self.config.corpus),
            documents=None if text.train_documents is None else text.train_documents + text.heldout_documents,
            dropped=text.dropped or {},
            pooling=vectors.pooling if vectors else "",
            retrieval=retrieval,
            phases=figures,
            trains_vectors=trained_pooling(self.config) is not None,
            random_parts=self._random_parts(),
            choice=choice,
            handed=handed,
            benchmarks=benchmarks,
        )
        costs = [*(done[phase].record.cost for phase in self.phases), training.record.cost]
        return Outcome(result, summed_costs(costs), training.record.resources)

    def _random_parts(self) -> str:
        """Names the parts of the model that began with random weights."""
        head = "a random head" if self.training.has_new_head else ""
        layers = f"{number} random layers" if (number := self.training.new_layers) else ""
        return " and ".join(filter(None, [head, layers]))

    def _fix(self, done: Done) -> str:
        """Returns advice on what to change if training made the model worse on the text that it was trained on."""
        if trained_pooling(self.config):
            return "The objective trains sentence vectors, not this loss, so measure retrieval (retrieval.pairs)"
        reports = [
            line for stage in (*self.phases, self.training) for line in json_lines(done[stage].path / METRICS_LINES)
        ]
        text, tokens = done[self.text or self.domain].result.train_tokens, done[self.training].result.tokens
        passes = tokens / text if text else None
        return fix_of_worse(self.config.training, reports, passes, self._random_parts())

    def _figures(self, trainings: Sequence[training_result.Trained], done: Done) -> list[PhaseFigures]:
        found, steps, tokens = [], 0, 0
        stages, evaluations = (*self.phases, self.training), (*self.between, self.after)
        for stage, trained, evaluation in zip(stages, trainings, evaluations, strict=True):
            losses = {name: text.loss for name, text in done[evaluation].result.texts.items()}
            rows = sum(share.rows for share in (trained.sources or {}).values()) // max(trained.steps - steps, 1)
            batch = rows or stage.config.training.global_batch_size  # rows is 0 for streamed text
            found.append(stage.figures(trained.steps - steps, trained.tokens - tokens, batch, losses))
            steps, tokens = trained.steps, trained.tokens
        return found

    def _labelled(self) -> LabelledText | None:
        """Reads the examples for the kinds of exports that are trained on the user's task.

        Raises:
            ConfigError, DataError, StorageError: files cannot be read, or have changed since they were listed.
        """
        if self.labelled is None:
            return None
        labelled = read_labelled(self.labelled.task)
        check_listed(self.labelled.listed)
        return labelled

    def _refuse_ignored_modules(self) -> None:
        """Raises ConfigError if the model is exported for sentence vectors, and the method adds modules to it."""
        config = self.config
        wanted = [f"export.kinds {name}" for name in need_vectors(config)]
        if config.export.sentence_transformers not in (None, "none"):
            wanted.append("export.sentence_transformers")
        if config.mteb.tasks or config.mteb.own:
            wanted.append("mteb")
        if wanted and method_of(config).adds_modules:
            raise ConfigError(
                f"method.kind {config.method.kind} adds modules to the model, which sentence-transformers would ignore",
                f"remove {' and '.join(wanted)}, or choose another method, such as lora or l2sp",
            )

    def _kept(self, model: Path) -> SentenceVectors | None:
        """Returns the settings for sentence-transformers, or None if the model is not exported for sentence vectors.

        If export.sentence_transformers is not set, a model with adapters or other added modules is not exported for
        sentence vectors, because sentence-transformers would ignore these modules.
        """
        kinds = [entry["kind"] for entry in stored_additions(model)] if self.vectors else []
        if kinds and self.config.export.sentence_transformers is None and not need_vectors(self.config):
            log(f"export: no files for sentence-transformers are written, because it would ignore {', '.join(kinds)}")
            return None
        return self.vectors
