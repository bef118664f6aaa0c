"""Stage `train`: a training run over prepared or streamed text."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.better import Less, More
from adapt.config import Config, what
from adapt.console import log
from adapt.method.table import method_of, past_fraction
from adapt.model.instruct import warn_of_instruct
from adapt.model.size import ModelSize
from adapt.model.start import MODEL_FOLDER, Start
from adapt.objective.known import objective_what
from adapt.preflight import check_memory, check_model, check_precision, check_space, space_needed
from adapt.runner import Done, Outcome, Record, Stage, Store
from adapt.runner.cost import cost_of
from adapt.stage.context import Context, root_of
from adapt.stage.dimensions import first_size
from adapt.stage.domains.noted import Noted
from adapt.stage.length import SourceShare, length_matters, length_over, mixed, shares_of, sized, weights_of
from adapt.stage.measurable import warn_of_unmeasured
from adapt.stage.text.prepare import Prepared, Streamed
from adapt.train.capacity.compute import with_flops_as_steps
from adapt.train.capacity.fit import size_of_training
from adapt.train.capacity.flops import mean_length, summed_sizes
from adapt.train.capacity.needs import training_needs
from adapt.train.checkpoints.branch import DEPENDS_ON_LENGTH, start_from_branch
from adapt.train.job import CHECKPOINTS, TrainingRun
from adapt.train.schedule import branch_step, check_warmup, length_of
from adapt.train.tracking.track import anchored

if TYPE_CHECKING:
    from adapt.train.capacity.forecast import Forecast

RAN_ON = (
    *("workers", "zero_stage", "offload", "precision", "micro_batch", "accumulation", "micro_batch_asked"),
    *("gradient_checkpointing", "compile", "device"),
)
"""What a training's record says of how it ran."""


@dataclass(frozen=True)
class Trained:
    """The figures of a finished training. The model is in the folder `model`."""

    steps: int
    tokens: int
    tokens_per_s: More[float]
    data_wait_share: Less[float]
    """Share of the time that the devices waited for text."""
    device_seconds: Less[float]
    flops: Less[float | None]
    mfu: More[float | None]
    """Model FLOPs utilization."""
    peak_memory_bytes: Less[int | None]
    transductive: bool
    """Whether the text of dev and test was among what it, or the model it began with, was trained on."""
    parameters: Less[int | None] = None
    """How many the trained model has; tied ones count once."""
    sources: dict[str, SourceShare] | None = None
    """The share of each source, by its name; None if the corpus is streamed."""
    cut_short: str = ""
    """What the model lacks because a streamed corpus ended before the planned length; empty for nothing."""


@dataclass(frozen=True, eq=False)
class Train(Stage[Trained]):
    """A model, trained on the text of some sources."""

    kind = "train"
    model_place = MODEL_FOLDER

    name: str
    config: Config
    start: Start
    corpora: Mapping[str, Stage[Prepared]]
    """The texts that it is trained on, by source."""
    replay: Stage[Prepared] | None
    """General text that is mixed in."""
    past: Mapping[str, Stage[Any]]
    """What the method asked for: measured of the domains before."""
    batch_examples: int | None
    """Documents that fill a step on average; None for the configured number of sequences."""
    is_transductive: bool
    """Whether the text of dev and test is among the corpora."""
    streamed: Streamed | None
    """The corpus, where it is read while it is trained on."""
    weights: tuple[float, ...] | None
    """Weights of the sources; None where they have none."""
    noted: Noted | None = None
    """What is noted when it begins: the sequence up to this domain."""
    recalled: Mapping[str, Stage[Prepared]] = field(default_factory=dict)
    """The texts of the domains before, where they are mixed in."""
    domain: str = ""
    """Name of the domain in a sequence; empty elsewhere, where the job's own name takes its place."""

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
    ) -> "Train":
        """The training of a configuration; see the fields."""
        config, weights = context.config, weights_of(context.config.corpus)
        given = tuple(weights) if weights else None
        start = context.start
        if start.training is None:
            warn_of_instruct(start.pretrained)
        return cls(
            config.name, config, start, corpora, replay, past or {}, batch_examples, is_transductive, streamed, given
        )

    @property
    def sources(self) -> list[Stage[Prepared]]:
        """All texts that it reads, in the order in which the mixture numbers them."""
        return [*self.corpora.values(), *self.recalled.values(), *([self.replay] if self.replay else [])]

    @property
    def number(self) -> int:
        """How many trainings of the chain there are up to this one."""
        before = self.start.training
        return 1 + (before.number if isinstance(before, Train) else 0)

    @property
    def length_matters(self) -> str:
        """Names what makes its steps depend on its length; empty if a longer training does the same steps."""
        return length_matters(self.config, has_general=self.replay is not None)

    def what(self) -> Mapping[str, Any]:
        """Model, objective, length, optimizer, mixture, method and seed."""
        config = self.config
        batch = {"global_batch_size": f"{self.batch_examples} examples"} if self.batch_examples else {}
        recalled = {"recalled": past_fraction(config)} if self.recalled else {}
        mixture = {name: value for name, value in what(config.mixture).items() if value is not None}
        method = method_of(config).what()
        if config.training.schedule != "wsd":  # has no branches, so that keys need not tell
            method.pop(DEPENDS_ON_LENGTH, None)
        elif self.length_matters:
            mixture |= {DEPENDS_ON_LENGTH: True}
        return {
            "mixture": {**mixture, "sources": list(self.corpora), "weights": self.weights, **recalled},
            "model": self.start.digest,
            "attention_dropout": config.model.attention_dropout,
            "objective": objective_what(config),
            "training": {**_given_length(what(config.training)), **batch},
            "seed": config.seed,
            "method": method,
            **({"domain": self.domain or self.name} if method_of(config).by_domain else {}),
        }

    def needs(self) -> Mapping[str, float]:
        """It computes on all workers, as many as may come."""
        return training_needs(self.config.resources)

    def refuse_early(self) -> None:
        """Looks at the arithmetic of the devices, and at the model."""
        check_precision(self.config)
        check_model(self.start.pretrained, self.config.objective.kind == "causal")

    def disk(self, folder: Path) -> tuple[int, int]:
        """Checkpoints and the model, as large as the one that it begins with."""
        branches = self.config.training.schedule == "wsd" and not self.length_matters
        return space_needed(folder, self.start.pretrained.model, self.config.training.keep_checkpoints + branches)

    def run(self, folder: Path, done: Done) -> Outcome[Trained]:
        """Trains on the cluster, resuming what an earlier run of this stage left."""
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
        from adapt.ray.runtime import connect
        from adapt.train.launch import launch

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
        """Drops the checkpoints if none are to be kept."""
        if not self.config.training.keep_checkpoints:
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)

    def forecast(self, records: Mapping[str, Record]) -> "Forecast | None":
        """What it will take. None where its model's dimensions cannot be told.

        Args:
            records: of finished stages, by key.
        """
        from adapt.train.capacity.forecast import forecast

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
        elif not config.training.epochs:  # then the length does not depend on the corpus
            length = length_of(config.training, 2**63 - 1)
        tokens = length.steps * config.training.global_batch_size * config.training.sequence_length if length else None
        return forecast(config, dimensions, tokens, self._mean_length(done), Store(root_of(config)))

    def _sized(self, texts: Sequence[Prepared], done: Done) -> Config:
        """The configuration with its global batch and its length in numbers, as far as they follow from the texts."""
        batched = sized(self.config, self.batch_examples, texts) if texts else self.config
        return with_flops_as_steps(batched, self._size(done), self._mean_length(done), bool(self.past))

    def _size(self, done: Done) -> ModelSize | None:
        """The dimensions of the model that it trains."""
        first = first_size(self.start, done)
        return first and size_of_training(self.config, first, self.number)

    def _mean_length(self, done: Done) -> float | None:
        return mean_length(summed_sizes(done[text].record.metrics for text in self.sources if text in done))


def _given_length(training: dict[str, Any]) -> dict[str, Any]:
    """Without a limit that older keys do not know, where there is none."""
    return {name: value for name, value in training.items() if name != "max_flops" or value is not None}


def outcome_of(
    reported: Mapping[str, Any], price_per_hour: float | None, knows: bool, sources: dict[str, SourceShare] | None
) -> Outcome[Trained]:
    """What a training came to, as its workers counted.

    Args:
        reported: what `adapt.train.launch.launch` hands back.
        price_per_hour: of a device.
        knows: whether the model has been trained on the text of dev and test.
        sources: what each gave.
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
    return Outcome(trained, cost, {name: reported[name] for name in RAN_ON})
