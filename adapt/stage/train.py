"""Stage `train` trains a model on prepared or streamed text.

A training of a sequence records which domains the sequence has started to learn, so that a changed sequence does not
silently start again.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config, TrainingConfig, what
from adapt.method.table import method_of, past_fraction
from adapt.model.architecture import warn_of_instruct
from adapt.model.size import ModelSize
from adapt.model.start import MODEL_FOLDER, Start
from adapt.model.trainable import check_trained, frozen_summary
from adapt.objective.table import objective_what, sees_only_earlier, weighs_words
from adapt.ray.runtime import connect
from adapt.runner import Done, Outcome, Record, Stage, Store
from adapt.runner.files import write_atomically
from adapt.runner.record import cost_of
from adapt.stage.context import Context, root_of
from adapt.stage.preflight import check_memory, check_model, check_precision, check_space, space_needed
from adapt.stage.prepare_text import Prepared, Streamed
from adapt.stage.training_plan import (
    SourceShare,
    first_size,
    length_matters,
    length_over,
    mixed,
    shares_of,
    sized,
    warn_of_unmeasured,
    weights_of,
)
from adapt.stage.weigh_words import WeighWords, weighed_words
from adapt.support.better import Less, More
from adapt.support.errors import ConfigError
from adapt.terminal.console import log
from adapt.train.capacity.device import training_needs
from adapt.train.capacity.flops import mean_length, summed_sizes, with_flops_as_steps
from adapt.train.capacity.forecast import forecast
from adapt.train.capacity.memory import size_of_training
from adapt.train.checkpoints.branch import DEPENDS_ON_LENGTH, start_from_branch
from adapt.train.metric_trackers import anchored
from adapt.train.schedule import branch_step, check_warmup, length_of
from adapt.train.training_run import CHECKPOINTS, TrainingRun

if TYPE_CHECKING:
    from adapt.train.capacity.forecast import Forecast


@dataclass(frozen=True)
class Noted:
    """The record of which domains a sequence has started to learn.

    Args:
        file: file of the record.
        domains: name of each domain and key of its prepared text, in the present order.
    """

    file: Path
    domains: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, root: Path, name: str, domains: tuple[tuple[str, str], ...]) -> "Noted":
        """Returns the record of the sequence with this name, below a storage root."""
        return cls(root / "sequence" / f"{name}.order.json", domains)

    def check(self) -> None:
        """Checks that a sequence was not changed, except by new domains at its end.

        Raises:
            ConfigError: the sequence was changed; names the domain and what to do.
        """
        for number, (new, old) in enumerate(zip(self.domains, self._known(), strict=False), start=1):
            if new[1] == old[1]:
                continue
            change, fix = f"domain {number} was {old[0]} and is now {new[0]}", "put new domains at the end"
            if new[0] == old[0]:
                change = f"the text of domain {number}, {new[0]}, or how it is read or decontaminated, has changed"
                fix = "undo that (evaluation sets of a new domain belong into its source's own `decontaminate`)"
            raise ConfigError(
                f"sequence {self.file.name.removesuffix('.order.json')}: {change}; this domain and all after it would"
                " be learned again",
                f"{fix}, or give the sequence another name (--name; in a chain file, the chain's `name`): domains that"
                " both share are not learned again",
            )

    def first(self, number: int) -> "Noted":
        """Returns the record of only the first domains."""
        return replace(self, domains=self.domains[:number])

    def save(self) -> None:
        """Writes the record, unless the file already lists more domains."""
        if len(self._known()) < len(self.domains):
            write_atomically(self.file, json.dumps(self.domains))

    def _known(self) -> list[tuple[str, str]]:
        try:
            return [(name, key) for name, key in json.loads(self.file.read_text())]
        except (OSError, ValueError, TypeError):
            return []  # no domain was started, or the record is broken and is ignored


RAN_ON = (
    *("workers", "zero_stage", "offload", "precision", "micro_batch", "accumulation", "micro_batch_asked"),
    *("gradient_checkpointing", "compile", "device", "documents", "padding"),
)
"""Entries of a training's record that describe how the training ran."""


@dataclass(frozen=True)
class Trained:
    """Result of a training: its metrics. The model is in the folder `model`."""

    steps: int
    """Optimizer steps."""
    tokens: int
    """Tokens that the model was trained on."""
    tokens_per_s: More[float]
    """Tokens per second, over all devices."""
    data_wait_share: Less[float]
    """Share of the time that the devices waited for text."""
    device_seconds: Less[float]
    """Time of the training, summed over its devices."""
    flops: Less[float | None]
    """Floating point operations of the forward and backward passes."""
    mfu: More[float | None]
    """Model FLOPs utilization."""
    peak_memory_bytes: Less[int | None]
    """Largest memory of one device, if it was measured."""
    transductive: bool
    """Whether this model, or the one it started from, was trained on the text of dev or test examples."""
    parameters: Less[int | None] = None
    """Number of parameters of the trained model. Tied parameters count once."""
    sources: dict[str, SourceShare] | None = None
    """Contribution of each source to the run, keyed by the source's name. None if the corpus is streamed."""
    cut_short: str = ""
    """Consequence of the early end of a streamed corpus. Empty if the corpus lasted for the planned length."""


@dataclass(frozen=True, eq=False)
class Train(Stage[Trained]):
    """Trains a model on the text of one or several sources."""

    kind = "train"
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
    """Average number of documents per optimizer step. If it is None, a step has the configured number of sequences."""
    is_transductive: bool
    """Whether the text of dev and test is among the corpora."""
    streamed: Streamed | None
    """The corpus if it is read during training. None if it is prepared first."""
    weights: tuple[float, ...] | None
    """Sampling weights of the sources. None if the sources have no weights."""
    noted: Noted | None = None
    """Record of the sequence up to this domain. It is written when the training starts. None outside sequences."""
    recalled: Mapping[str, Stage[Prepared]] = field(default_factory=dict)
    """Texts of earlier domains that are replayed, keyed by domain. Empty without such replay."""
    weighed_words: WeighWords | None = None
    """Stage with the weights of the domain's words. None if the objective needs none."""
    domain: str = ""
    """Name of the domain in a sequence. It is empty outside sequences, where the job's name is used."""

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
        general: Stage[Prepared] | None = None,
    ) -> "Train":
        """Creates the training of a context's configuration. The arguments are the fields with the same names.

        `general` is the measured general text, with which objectives may compare the domain's words.

        Raises:
            ConfigError: the objective needs general text, and there is none, or prepared text, and it is streamed.
        """
        config, weights = context.config, weights_of(context.config.corpus)
        source_weights = tuple(weights) if weights else None
        start = context.start
        if start.training is None:
            warn_of_instruct(start.pretrained)
        return cls(
            config.name,
            config,
            start,
            corpora,
            replay,
            past or {},
            batch_examples,
            is_transductive,
            streamed,
            source_weights,
            weighed_words=weighed_words(config.name, config, context.tokens, corpora, general)
            if weighs_words(config.objective)
            else None,
        )

    @property
    def sources(self) -> list[Stage[Prepared]]:
        """All texts that the training reads, in the order of the mixture."""
        return [*self.corpora.values(), *self.recalled.values(), *([self.replay] if self.replay else [])]

    @property
    def number(self) -> int:
        """Number of trainings in the chain up to and including this one."""
        before = self.start.training
        return 1 + (before.number if isinstance(before, Train) else 0)

    @property
    def head_warmup(self) -> int:
        """Number of steps in which only a new head is trained.

        0 except in the first training after the head was added.
        """
        is_first = self.start.head is not None and self.start.training == self.start.head
        return self.config.model.head_warmup_steps if is_first else 0

    @property
    def length_matters(self) -> str:
        """The setting that makes training steps depend on the length of the training.

        Empty if there is no such setting.
        """
        return length_matters(self.config, has_general=self.replay is not None)

    def what(self) -> Mapping[str, Any]:
        """Returns model, objective, length, optimizer, mixture, method and seed."""
        config = self.config
        batch = {"global_batch_size": f"{self.batch_examples} examples"} if self.batch_examples else {}
        recalled = {"recalled": past_fraction(config)} if self.recalled else {}
        mixture = {name: value for name, value in what(config.mixture).items() if value is not None}
        method = method_of(config).what()
        if config.training.schedule != "wsd":  # other schedules have no branches, so their keys need no such entry
            method.pop(DEPENDS_ON_LENGTH, None)
        elif self.length_matters:
            mixture |= {DEPENDS_ON_LENGTH: True}
        return {
            "mixture": {**mixture, "sources": list(self.corpora), "weights": self.weights, **recalled},
            "model": self.start.digest,
            "attention_dropout": config.model.attention_dropout,
            "objective": objective_what(config),
            "training": {**_with_older_keys(what(config.training)), **batch},
            "seed": config.seed,
            "method": method,
            **({"domain": self.domain or self.name} if method_of(config).by_domain else {}),
            **({"head_warmup_steps": self.head_warmup} if self.head_warmup else {}),
        }

    def needs(self) -> Mapping[str, float]:
        """Requires all workers, up to the largest allowed number."""
        return training_needs(self.config.resources)

    def refuse_early(self) -> None:
        """Checks the devices' precision, the model, and which parameters are trained."""
        check_precision(self.config)
        objective = self.config.objective
        check_model(self.start, objective.kind == "causal", sees_only_earlier(objective))
        check_trained(self.config.training, self.start.pretrained.model)

    def disk(self, folder: Path) -> tuple[int, int]:
        """Returns the disk space for checkpoints and the model, which is about as large as the initial model."""
        branches = self.config.training.schedule == "wsd" and not self.length_matters
        return space_needed(folder, self.start.pretrained.model, self.config.training.keep_checkpoints + branches)

    def run(self, folder: Path, done: Done) -> Outcome[Trained]:
        """Trains on the cluster, resuming an interrupted run of this stage."""
        from adapt.train.ray_train import launch

        if self.noted:
            self.noted.save()
        warn_of_unmeasured(self.name, self.corpora, done)
        texts = {name: done[text].result for name, text in self.corpora.items()}
        recalled = {name: done[text].result for name, text in self.recalled.items()}
        replay = done[self.replay].result if self.replay else None
        config = self._sized(list(texts.values()), done)
        start, mixture = self.start.made(done), mixed(config, texts, replay, recalled)
        steps = length_over(config, mixture).steps
        check_warmup(config.training, steps)
        branch = None if self.length_matters else branch_step(config.training, steps)
        check_space(folder, start.model, config.training.keep_checkpoints + (branch is not None))
        if frozen := frozen_summary(config.training, start.model):
            log(frozen)

        connect(config.resources)
        sources = self.sources
        sizes = summed_sizes(done[text].record.metrics for text in sources)
        check_memory(config, self.start.with_tokenizer(done).model, sizes, self.number)
        job = TrainingRun(
            config=replace(config, tracking=anchored(config.tracking)),
            key=self.key,
            folder=str(folder),
            corpora=tuple(str(done[text].path) for text in sources),
            mixture=mixture,
            pretrained=start,
            steps=steps,
            branch_step=branch,
            online=self.streamed.online(folder, done) if self.streamed else None,
            past={name: str(done[stage].path) for name, stage in self.past.items()},
            base=str(self.start.with_tokenizer(done).model),
            number=self.number,
            domain=self.domain or self.name,
            head_warmup=self.head_warmup,
            weighed_words=str(done[self.weighed_words].path) if self.weighed_words else "",
            texts=() if self.streamed else tuple(str(done[text].path) for text in self.corpora.values()),
        )
        run_folder = folder / CHECKPOINTS / job.run_name
        start_from_branch(self, Store(root_of(config)), config.training, steps, run_folder)
        reported = launch(job)
        if mixture is None and reported["step"] < steps:
            log(f"the corpus was passed through after {reported['step']} of {steps} steps")
            if reported["cut_short"]:
                log(f"warning: {reported['cut_short']}; set training.max_steps to {reported['step']}")
        knows = self.is_transductive or self.start.knows(done)
        named = {**texts, **recalled, **({"(replay)": replay} if replay else {})}
        shares = shares_of(named, mixture, reported["step"], config.training)
        return outcome_of(reported, config.resources.price_per_device_hour, knows, shares)

    def tidy(self, folder: Path) -> None:
        """Deletes the checkpoints if none are to be kept."""
        if not self.config.training.keep_checkpoints:
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)

    def forecast(self, records: Mapping[str, Record]) -> "Forecast | None":
        """Forecasts the cost of the training; None if the model's dimensions are unknown.

        Args:
            records: records of finished stages, by key.
        """
        done = Done(records)
        dimensions = self._size(done)
        if dimensions is None:
            return None
        config, known, length = self._sized([], done), all(text in done for text in self.sources), None
        if known:
            texts, recalled = (
                {name: done[text].result for name, text in given.items()} for given in (self.corpora, self.recalled)
            )
            replay = done[self.replay].result if self.replay else None
            config = self._sized(list(texts.values()), done)
            length = length_over(config, mixed(config, texts, replay, recalled))
        elif not config.training.epochs:  # without epochs, the length does not depend on the corpus
            length = length_of(config.training, 2**63 - 1)
        tokens = length.steps * config.training.global_batch_size * config.training.sequence_length if length else None
        return forecast(config, dimensions, tokens, self._mean_length(done), Store(root_of(config)))

    def _sized(self, texts: Sequence[Prepared], done: Done) -> Config:
        """Returns the configuration with batch size and length in numbers, as far as the texts determine them."""
        batched = sized(self.config, self.batch_examples, texts) if texts else self.config
        return with_flops_as_steps(batched, self._size(done), self._mean_length(done), bool(self.past))

    def _size(self, done: Done) -> ModelSize | None:
        """Returns the dimensions of the model that is trained. None if they are unknown."""
        first = first_size(self.start, done)
        return first and size_of_training(self.config, first, self.number)

    def _mean_length(self, done: Done) -> float | None:
        return mean_length(summed_sizes(done[text].record.metrics for text in self.sources if text in done))


_LATER = {
    name: getattr(TrainingConfig(), name) for name in ("max_flops", "decay", "embedding_rate", "layer_decay", "freeze")
}
"""Fields that keys of older results do not contain, with their defaults."""


def _with_older_keys(training: dict[str, Any]) -> dict[str, Any]:
    """Removes newer fields at their defaults, so that the keys of older results remain valid."""
    return {name: value for name, value in training.items() if name not in _LATER or value != _LATER[name]}


def outcome_of(
    reported: Mapping[str, Any], price_per_hour: float | None, knows: bool, sources: dict[str, SourceShare] | None
) -> Outcome[Trained]:
    """Builds the result of a training from the figures of its workers.

    Args:
        reported: the figures that `adapt.train.ray_train.launch` returns.
        price_per_hour: price of one device per hour.
        knows: whether the model was trained on the text of dev and test.
        sources: share of each source.
    """
    seconds = max(reported["seconds"], 1e-9)
    trained = Trained(
        steps=reported["step"],
        tokens=reported["tokens"],
        tokens_per_s=reported["own_tokens"] / seconds,
        data_wait_share=reported["data_wait_seconds"] / seconds,
        device_seconds=reported["device_seconds"],
        flops=reported.get("flops"),
        mfu=reported.get("mfu"),
        peak_memory_bytes=reported["peak_memory_bytes"],
        transductive=knows,
        parameters=reported.get("parameters"),
        sources=sources,
        cut_short=reported.get("cut_short", ""),
    )
    cost = {**cost_of(reported["device_seconds"], price_per_hour), "tokens": reported["own_tokens"]}
    return Outcome(trained, cost, {name: reported.get(name) for name in RAN_ON})
