"""Defines the stage `train`, which trains a model on prepared or streamed text, for a run or for one phase of a run."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from adapt.advise.regime import Regime
from adapt.config import Config, what
from adapt.corpus.sample_order import Mixture, share_changes
from adapt.method.table import method_of, past_fraction
from adapt.model import architecture, trainable
from adapt.model.size import ModelSize
from adapt.model.start import MODEL_FOLDER, Start
from adapt.objective.table import objective_what, predicted_fraction, weighs_words
from adapt.ray.runtime import connect
from adapt.runner import Done, Outcome, Record, Shown, Stage, Store
from adapt.stage import add_head, measured_training, preflight, training_plan
from adapt.stage.context import Context, root_of, with_teachers
from adapt.stage.prepare_text import Prepared, Streamed
from adapt.stage.training_result import Trained, outcome_of
from adapt.stage.weigh_words import WeighWords, weighed_words
from adapt.support.errors import ConfigError
from adapt.terminal.console import log
from adapt.train import metric_trackers, schedule, stopping, training_run
from adapt.train.capacity import device, flops, memory
from adapt.train.capacity.forecast import Forecast, forecast
from adapt.train.checkpoints.branch import DEPENDS_ON_LENGTH, start_from_branch, start_from_phase
from adapt.train.phases import Phase, PhaseFigures, check_batches, check_phase_warmup, known_steps, phases_of


@dataclass(frozen=True, eq=False)
class Train(Stage[Trained]):
    """Trains a model on the text of one or several sources, for a whole run or for one phase of a run."""

    kind = "train"
    device_time = "own"
    model_place = MODEL_FOLDER

    name: str
    config: Config
    start: Start
    corpora: Mapping[str, Stage[Prepared]]
    """Texts to train on, keyed by source."""
    replay: Stage[Prepared] | None
    """General text that is replayed. None without replay."""
    past: Mapping[str, Stage[Any]]
    """Stages that measured earlier domains, for methods that need such measurements."""
    batch_examples: int | None
    """Average number of documents per optimizer step. If None, a step has the configured number of sequences."""
    is_transductive: bool
    """Whether the model is also trained on the text of dev and test."""
    streamed: Streamed | None
    """The corpus, if it is streamed during training. None if the corpus is tokenized before training."""
    weights: tuple[float, ...] | None
    """Sampling weights of the sources. None if the sources have no weights."""
    recalled: Mapping[str, Stage[Prepared]] = field(default_factory=dict)
    """Texts of earlier domains that are replayed, keyed by domain. Empty if no domain is replayed."""
    weighed_words: WeighWords | None = None
    """Stage that computes weights of the domain's words. None if the objective needs no such weights."""
    domain: str = ""
    """Name of the domain in a sequence. It is empty outside sequences, where the job's name is used."""
    phase: Phase | None = None
    """The phase of the run that this stage trains (`training.phases`). None for a run without phases."""
    previous: "Train | None" = None
    """Training stage of the previous phase, whose weights and optimizer state begin this phase. None in the first
    phase."""
    judged: Mapping[str, Stage[Any]] = field(default_factory=dict)
    """Texts and tasks, keyed by name, whose metrics may end the training run or choose the exported step
    (`training.stop`, `training.keep`). Empty if no metric is used for this."""
    shown: Shown = field(default_factory=Shown)
    """Texts whose held-out losses are only shown while the model trains."""
    teachers: tuple[Start, ...] = ()
    """Other models that the method learns from (`Method.other_models`)."""

    @classmethod
    def of(
        cls,
        context: Context,
        corpora: Mapping[str, Stage[Prepared]],
        replay: Stage[Prepared] | None = None,
        past: Mapping[str, Stage[Any]] | None = None,
        batch_examples: int | None = None,
        is_transductive: bool = False,
        streamed: Streamed | None = None,
        recalled: Mapping[str, Stage[Prepared]] | None = None,
        domain: str = "",
        general: Stage[Prepared] | None = None,
        measured: Mapping[str, Stage[Prepared]] | None = None,
    ) -> "Train":
        """Creates the training stage for a context. Arguments not described here are the fields of the same name.

        `general` is the general text on which losses are measured. Objectives may compare the domain's words with it.
        `measured` has the texts to measure while the model trains: `domain`, `general`, and earlier domains by name.

        Returns:
            The training stage. If `training.phases` is set, this is the stage of the last phase. Its field `previous`
            is the stage of the phase before it, and so on.

        Raises:
            ConfigError: a phase does not suit the job. Or the objective needs general text, but there is none. Or the
                objective needs prepared text, but the corpus is streamed. Or a rule of training.stop names a metric
                that is not measured. Or the method would never train new random weights.
        """

        def words(config: Config) -> WeighWords | None:
            if not weighs_words(config.objective):
                return None
            return weighed_words(config.name, config, context.tokens, corpora, general)

        (config, teachers), start = with_teachers(context), context.start
        if start.training is None:
            architecture.warn_of_instruct(start.pretrained)
        phases = phases_of(config)
        if batch_examples:
            check_batches(config, phases)
        texts: dict[str, Stage[Any]] = {**(measured or {}), **measured_training.probed_tasks(context)}
        watched = texts if config.evaluation.interval_steps else {}
        stops = config.training.decides_by_points
        measured_training.check_measures(config, texts)
        whole = cls(
            name=config.name,
            config=config,
            start=start,
            corpora=corpora,
            replay=replay,
            past=past or {},
            batch_examples=batch_examples,
            is_transductive=is_transductive,
            streamed=streamed,
            weights=training_plan.weights_of(config.corpus),
            recalled=recalled or {},
            weighed_words=None if phases else words(config),
            domain=domain,
            judged=watched if stops else {},
            shown=Shown({} if stops else watched),
            teachers=teachers,
        )
        training = None
        for phase in phases:
            own = phase.config
            training = replace(
                whole,
                name=f"{config.name}-phase-{phase.number}",
                config=own,
                weights=training_plan.weights_of(own.corpus),
                weighed_words=words(own),
                phase=phase,
                previous=training,
            )
        last = training or whole
        last._check_lengths()
        last._check_random_weights()
        return last

    @property
    def phases(self) -> "tuple[Train, ...]":
        """The training stages of all phases up to and including this one. Without phases, only this stage."""
        return (*(self.previous.phases if self.previous else ()), self)

    @property
    def sources(self) -> list[Stage[Prepared]]:
        """All texts that the model is trained on, in the order of the mixture."""
        return [*self.corpora.values(), *self.recalled.values(), *([self.replay] if self.replay else [])]

    @property
    def number(self) -> int:
        """Number of training stages from the initial model up to and including this stage."""
        return 1 + (self._made_by.number if isinstance(self._made_by, Train) else 0)

    @property
    def _made_by(self) -> Stage[Any] | None:
        """The stage that wrote the initial model. A stage that only redraws the top layers (`RedrawTop`) is skipped."""
        made = self.start.training
        return made.start.training if isinstance(made, add_head.RedrawTop) else made

    @property
    def has_new_head(self) -> bool:
        """Whether the head has random weights when training begins (`model.head: new`)."""
        return add_head.has_untrained_head(self.start)

    @property
    def new_layers(self) -> int:
        """Number of top layers with random weights when training begins (`model.reinitialize_top`)."""
        return self.config.model.reinitialize_top if isinstance(self.start.training, add_head.RedrawTop) else 0

    @property
    def head_warmup(self) -> int:
        """Number of steps in which only a new head is trained. 0 if the head was already trained."""
        return self.config.model.head_warmup_steps if self.has_new_head else 0

    @property
    def length_matters(self) -> str:
        """The setting, with its value, that makes a training step depend on the total length of the training run.

        Empty if there is no such setting. A longer run with schedule `wsd` then continues from the state of a shorter
        run. Data order, masks and dropout are functions of (seed, step), so only the method and the mixture can depend
        on the length.
        """
        config, training = self.config, self.config.training
        if method_of(config).depends_on_length:
            return f"method.kind {config.method.kind}"
        if training.decides_by_points:
            return "training.stop" if training.stop else "training.keep best"
        if self.replay and share_changes(config.mixture):
            return f"mixture.replay_last {config.mixture.replay_last:g}"
        return ""

    def what(self) -> Mapping[str, Any]:
        config = self.config
        batch = {"global_batch_size": f"{self.batch_examples} examples"} if self.batch_examples else {}
        recalled = {"recalled": past_fraction(config)} if self.recalled else {}
        mixture = {name: value for name, value in what(config.mixture).items() if value is not None}
        method = method_of(config).what()
        if self.phase and self.length_matters:
            mixture |= {DEPENDS_ON_LENGTH: True}
        elif config.training.schedule != "wsd":  # only `wsd` continues shorter runs, so other schedules need no entry
            method.pop(DEPENDS_ON_LENGTH, None)
        elif self.length_matters:
            mixture |= {DEPENDS_ON_LENGTH: True}
        phase = {"phase": {"share": list(self.phase.share)} if self.phase.share else {}} if self.phase else {}
        return {
            "mixture": {**mixture, "sources": list(self.corpora), "weights": self.weights, **recalled},
            "model": self.start.digest,
            "attention_dropout": config.model.attention_dropout,
            "objective": objective_what(config),
            "training": {**training_plan.training_what(config.training), **batch},
            "seed": config.seed,
            "method": method,
            **({"domain": self.domain or self.name} if method_of(config).by_domain else {}),
            **({"head_warmup_steps": self.head_warmup} if self.head_warmup else {}),
            **phase,
            **({"generator": self.start.generator} if self.start.generator else {}),
            **({"judged": measured_training.judged_what(config)} if self.judged else {}),
            **({"teachers": [teacher.digest for teacher in self.teachers]} if self.teachers else {}),
        }

    def rows_per_step(self, done: Done) -> int:
        """Returns the number of rows of a global batch. With `tapt.batch_examples`, it depends on texts in `done`."""
        texts = [done[text].result for text in self.corpora.values() if text in done]
        return self._sized(texts, done).training.global_batch_size

    def figures(
        self, steps: int, tokens: int, rows: int, losses: dict[str, float | None] | None = None
    ) -> PhaseFigures:
        """Returns the settings, size and losses of this stage as a phase of a training run.

        Args:
            steps: number of steps of the phase.
            tokens: number of tokens that the phase trains on.
            rows: number of rows of a global batch.
            losses: losses of this phase's model, keyed by measured text. None if they are not measured yet.
        """
        training, objective = self.config.training, self.config.objective
        return PhaseFigures(
            steps=steps,
            tokens=tokens,
            learning_rate=training.learning_rate,
            schedule=training.decay if training.schedule == "wsd" else training.schedule,
            objective=objective.kind,
            mask_fraction=share if (share := predicted_fraction(objective)) < 1 else None,
            sequence_length=training.sequence_length,
            global_batch_size=rows,
            losses=losses or {},
        )

    def needs(self) -> Mapping[str, float]:
        """Requires the resources of the maximum number of workers."""
        return device.training_needs(self.config.resources)

    def refuse_early(self) -> None:
        """Checks that precision, objective, `training.freeze` and `training.layer_decay` suit devices and model."""
        preflight.check_precision(self.config)
        preflight.check_start(self.config, self.start)
        trainable.check_trained(self.config.training, self.start.pretrained.model)

    def disk(self, folder: Path) -> tuple[int, int]:
        """Returns the disk space for checkpoints and the trained model, which is as large as the initial model."""
        branches = self.config.training.schedule == "wsd" and not self.length_matters and not self.phase
        return preflight.space_needed(folder, self.start.pretrained.model, self._kept + branches, self._copies)

    def _check_lengths(self) -> None:
        """Checks the lengths of all phases, or of a run without phases, if they are known before texts are prepared.

        Raises:
            ConfigError: a phase is shorter than one step or than its warm-up, or all steps train only a new head.
        """
        total: int | None = 0
        for stage in self.phases:
            steps = known_steps(stage.config.training, stage.phase, self.batch_examples)
            if stage.phase and steps is not None:
                check_phase_warmup(stage.phase, steps)
            total = None if total is None or steps is None else total + steps
        if total is not None:
            schedule.check_head_warmup(self.head_warmup, total)

    def _check_random_weights(self) -> None:
        """Checks that the method trains a new head and new top layers, if the model has any.

        Raises:
            ConfigError: the method freezes them, so they would keep their random weights.
        """
        method, model = method_of(self.config), self.config.model
        settings = {
            "model.head is new": self.has_new_head and not method.trains_head,
            f"model.reinitialize_top is {model.reinitialize_top}": self.new_layers and not method.trains_layers,
        }
        if setting := next((setting for setting, is_frozen in settings.items() if is_frozen), ""):
            raise ConfigError(
                f"{setting}, but method.kind {self.config.method.kind} freezes the model, so the new weights would stay"
                " random",
                "train with method.kind plain first, and then start from the trained model without this setting",
            )

    @property
    def _kept(self) -> int:
        """Number of checkpoints that are kept. A phase keeps at least one, because the next phase begins with it."""
        return max(self.config.training.keep_checkpoints, 1 if self.phase else 0)

    @property
    def _copies(self) -> int:
        """Number of values per weight in a checkpoint; see `adapt.stage.preflight.space_needed`."""
        return 4 if stopping.keeps_earlier(self.config.training) else 3

    def run(self, folder: Path, done: Done) -> Outcome[Trained]:
        """Trains on the cluster, resuming an interrupted run of this stage."""
        from adapt.train.ray_train import launch

        training_plan.warn_of_unmeasured(self.corpora, done)
        start, part = self.start.made(done), self._part(done)
        config, steps = part.config, part.last - part.first
        schedule.check_warmup(config.training, steps)
        if not self.phase:
            schedule.check_head_warmup(self.head_warmup, steps)
        branch = None if self.length_matters or self.phase else schedule.branch_step(config.training, steps)
        preflight.check_space(folder, start.model, self._kept + (branch is not None), self._copies)
        if frozen := trainable.frozen_summary(config.training, start.model):
            log(frozen)

        connect(config.resources)
        sources = self.sources
        sizes = flops.summed_sizes(done[text].record.metrics for text in sources)
        first = self.start.with_tokenizer(done)
        preflight.check_memory(config, first.model, sizes, self.number, first.generator)
        watching = {**self.judged, **self.shown.stages}
        watched = measured_training.measures_of(
            self.name, part, watching, done, self._size(done), is_phase=self.phase is not None
        )
        job = training_run.TrainingRun(
            config=replace(config, tracking=metric_trackers.anchored(config.tracking)),
            key=self.key,
            folder=str(folder),
            corpora=tuple(str(done[text].path) for text in sources),
            stretches=part.stretches,
            pretrained=start,
            steps=part.last,
            first_step=part.first,
            branch_step=branch,
            online=self.streamed.online(folder, done) if self.streamed else None,
            past={name: str(done[stage].path) for name, stage in self.past.items()},
            base=str(first.model),
            number=self.number,
            domain=self.domain or self.name,
            head_warmup=self.head_warmup,
            weighed_words=str(done[self.weighed_words].path) if self.weighed_words else "",
            texts=() if self.streamed else tuple(str(done[text].path) for text in self.corpora.values()),
            measures=watched.measures,
            measure_interval=watched.interval,
            teachers=tuple(str(teacher.made(done).model) for teacher in self.teachers),
        )
        run_folder = folder / training_run.CHECKPOINTS / job.run_name
        store = Store(root_of(config))
        start_from_branch(self, store, config.training, part.last, run_folder, part.first)
        if self.previous:
            start_from_phase(done[self.previous].record, part.first, run_folder, store.root)
        reported = launch(job)
        if not part.stretches and reported["step"] < part.last and not reported.get("early_end"):
            log(f"the corpus ended after {reported['step']} of {part.last} steps")
            if reported["cut_short"]:
                log(f"warning: {reported['cut_short']}; set training.max_steps to {reported['step']}")
        knows = self.is_transductive or any(start.knows(done) for start in (self.start, *self.teachers))
        shares = training_plan.shares_of(self._named(done), part.up_to(reported["step"]))
        outcome = outcome_of(reported, config.resources.price_per_device_hour, knows, shares, watched.sampling)
        points = outcome.result.points
        for line in [*stopping.described(outcome.result.early_end, points), *stopping.kept(points, config.training)]:
            log(line)
        return outcome

    def tidy(self, folder: Path) -> None:
        """Deletes the checkpoints if the configuration keeps none."""
        if not self._kept:
            shutil.rmtree(folder / training_run.CHECKPOINTS, ignore_errors=True)

    def forecast(self, records: Mapping[str, Record]) -> Forecast | None:
        """Forecasts the cost of the training stage. Returns None if the model's dimensions are unknown."""
        done = Done(records)
        dimensions = self._size(done)
        if dimensions is None:
            return None
        config, steps, part = self._sized([], done), None, None
        if all(text in done for text in self.sources):
            part = self._part(done)
            config, steps = part.config, part.last - part.first
        elif not config.training.epochs:  # without epochs, the length does not depend on the corpus
            length = schedule.length_of(config.training, 2**63 - 1)
            steps = self.phase.steps(length) if self.phase else length.steps
        tokens = sum(shape.tokens for shape in schedule.shapes_of(config.training, steps)) if steps else None
        folders = [done[text].path for text in self.sources] if part else []
        as_rows = training_plan.documents_as_rows(config, self.start, part, folders)
        return forecast(config, dimensions, tokens, self._mean_length(done), Store(root_of(config)), as_rows)

    def regime(self, records: Mapping[str, Record]) -> Regime | None:
        """Returns tokens per parameter and passes over the texts, or None if a text is streamed or not prepared yet."""
        done = Done(records)
        size = self._size(done)
        if size is None or not all(text in done for text in self.sources):
            return None
        return training_plan.regime_of(self._named(done), list(self.corpora), self._part(done), size.parameters)

    def _part(self, done: Done) -> training_plan.RunPart:
        """Returns the steps of this stage, which follow the steps of earlier phases. `done` contains the texts."""
        before = self.previous._part(done) if self.previous else None
        texts, recalled = (
            {name: done[text].result for name, text in given.items()} for given in (self.corpora, self.recalled)
        )
        replay = done[self.replay].result if self.replay else None
        config = self._sized(list(texts.values()), done)
        shortest = min([config.training.sequence_length, *(length for _, length in config.training.length_ramp)])

        @cache
        def mixture_at(length: int) -> "Mixture | None":
            shorter = replace(config, training=replace(config.training, sequence_length=length, length_ramp=[]))
            mixture = training_plan.mixed(shorter, texts, replay, recalled, self.phase)
            ramped = mixture and config.training.length_ramp and length != shortest
            most = mixture_at(shortest) if ramped else None
            return mixture.numbered(most.rows) if mixture and most else mixture

        return training_plan.part_of(config, mixture_at, self.phase, before)

    def _named(self, done: Done) -> dict[str, Prepared]:
        """Returns the finished texts by name, in the order of the mixture."""
        replay = {training_plan.REPLAYED: self.replay} if self.replay else {}
        return {name: done[text].result for name, text in {**self.corpora, **self.recalled, **replay}.items()}

    def _sized(self, texts: Sequence[Prepared], done: Done) -> Config:
        """Returns the configuration with the batch size and length that are computed from the texts."""
        batched = training_plan.sized(self.config, self.batch_examples, texts) if texts else self.config
        return flops.with_flops_as_steps(batched, self._size(done), self._mean_length(done), bool(self.past))

    def _size(self, done: Done) -> ModelSize | None:
        """Returns the dimensions of the model that is trained. None if they are unknown."""
        first = training_plan.first_size(self.start, done)
        generator = self.start.pretrained.generator
        return first and memory.size_of_training(self.config, first, self.number, generator)

    def _mean_length(self, done: Done) -> float | None:
        return flops.mean_length(flops.summed_sizes(done[text].record.metrics for text in self.sources if text in done))
