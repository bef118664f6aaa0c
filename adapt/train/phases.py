"""Computes the configuration and length of each phase of a training run, and checks ramps of batch size and length.

Phases follow one another in one run, as in the pre-training of ModernBERT (arXiv 2412.13663) and mmBERT (arXiv
2509.06888, masking 30%, then 15%, then 5%). Weights, the optimizer's moments and its step count pass from phase to
phase, so that only the first phase needs a warm-up. Each phase has its own learning rate, objective, mixture, batch
and sequence length. This module loads no heavy library, because `dontstop chain plan` uses it too.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from adapt.config import Config, MixtureConfig, ObjectiveConfig, PhaseConfig, TrainingConfig, section_of
from adapt.config.fields import hints_of, read_fields
from adapt.method.table import method_of
from adapt.objective.table import OBJECTIVES, reads_own_vectors
from adapt.support.better import Less
from adapt.support.errors import AdaptError, ConfigError, nearest
from adapt.train.schedule import PAPER_STEPS, RunLength, length_of

REPLACED = ("schedule", "warmup_fraction", "warmup_steps", "cooldown_fraction", "decay", "floor_fraction")
"""Fields of section training that phases replace."""
LIMITS = ("max_steps", "max_tokens", "max_flops", "epochs")
"""Fields of section training that limit the length of a run."""
MIXED = ("replay_fraction", "replay_last", "temperature", "order")
"""Fields of section mixture that a phase may change."""


@dataclass(frozen=True)
class Phase:
    """One phase of a training run."""

    number: int
    """Number of the phase, from 1."""
    config: Config
    """Configuration with the phase's own values, without `training.phases`. It has the length limits of the phase, or
    of the whole run if the phase is a share of the run."""
    share: tuple[float, float] | None
    """Begin and end of the phase in the run, as shares from 0 to 1. None if the phase has its own length."""

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Adds the number of the phase to the text of errors that the block raises."""
        try:
            yield
        except AdaptError as error:
            raise type(error)(f"{_place(self.number)}: {error.what}", error.fix) from error

    def steps(self, length: RunLength) -> int:
        """Returns the number of steps of the phase.

        Args:
            length: length of a run with the configuration `config` of this phase.

        Raises:
            ConfigError: the phase is shorter than one step.
        """
        if self.share is None:
            return length.steps
        begin, end = (round(share * length.steps) for share in self.share)
        if begin == end:
            raise ConfigError(
                f"{_place(self.number)} is shorter than one step: the run has {length.steps} steps",
                "give it a larger share, or make the run longer",
            )
        return end - begin


PHASE_COLUMNS = ("steps", "tokens", "learning rate", "objective", "batch x length")
"""Column headers of the tables of phases."""


@dataclass(frozen=True)
class PhaseFigures:
    """Settings and results of a phase, for tables. If the phase has finished, they include losses on held-out text."""

    steps: int
    """Number of optimizer steps of the phase."""
    tokens: int
    """Number of tokens that the phase trained on."""
    learning_rate: float
    """Peak learning rate of the phase."""
    schedule: str
    """Learning-rate schedule of the phase: constant, or how the learning rate falls."""
    objective: str
    """Objective of the phase."""
    mask_fraction: float | None
    """Share of the tokens that are predicted. None if the objective predicts next tokens."""
    sequence_length: int
    global_batch_size: int
    losses: dict[str, Less[float | None]] = field(default_factory=dict)
    """Loss on each measured text after the phase [nats per predicted token], keyed by the name of the text."""

    def cells(self) -> list[str]:
        """Returns the cells of the phase's row in a table, in the order of PHASE_COLUMNS."""
        return [
            f"{self.steps:,}",
            f"{self.tokens:,}",
            f"{self.learning_rate:g}, {self.schedule}",
            self.objective if self.mask_fraction is None else f"{self.objective}, {self.mask_fraction:.0%}",
            f"{self.global_batch_size:,} x {self.sequence_length:,}",
        ]

    def sentence(self) -> str:
        """Describes the phase in one line, for the model card."""
        said = [f"{name} {cell}" for name, cell in zip(PHASE_COLUMNS, self.cells(), strict=True)]
        losses = [f"loss on {text} {loss:.3f}" for text, loss in self.losses.items() if loss is not None]
        return "; ".join([*said, *losses])


def phases_of(config: Config) -> tuple[Phase, ...]:
    """Returns the phases of a training run in their order. Without `training.phases`, the result is empty.

    Raises:
        ConfigError: a phase contradicts another field, or the phases do not add up to the run.
    """
    phases = config.training.phases
    if not phases:
        return ()
    shares = _shares(config)
    return tuple(
        Phase(number, _in_phase(config, phase, number, share), share)
        for number, (phase, share) in enumerate(zip(phases, shares, strict=True), start=1)
    )


def objectives_of(config: Config) -> tuple[ObjectiveConfig, ...]:
    """Returns the objective of each phase, or the only objective of a run without phases."""
    return tuple(phase.config.objective for phase in phases_of(config)) or (config.objective,)


def check_phases(config: Config) -> None:
    """Refuses phases that contradict other fields of the configuration.

    Raises:
        ConfigError: names the field or the phase, and the fix.
    """
    training = config.training
    if not training.phases:
        return
    defaults = TrainingConfig()
    for name in REPLACED:
        if getattr(training, name) != getattr(defaults, name):
            fix = f"leave training.{name} out: each phase has its own schedule, floor_fraction and warmup_steps"
            raise ConfigError(f"training.{name} is set, but training.phases replaces it", fix)
    if method_of(config).depends_on_length:
        raise ConfigError(
            f"training.phases is set, but method.kind {config.method.kind} depends on the length of the whole run",
            "choose another method, or leave training.phases out",
        )
    phases = phases_of(config)
    _check_modules(phases)
    for phase in phases:
        if reads_own_vectors(phase.config):
            raise ConfigError(
                f"{_place(phase.number)} has the objective {phase.config.objective.kind}, whose decoder has parts that"
                " other phases lack",
                "train it in a job of its own, such as a stage of a chain (dontstop recipes sentence_embeddings)",
            )
        _check_streamed(config, phase)
        if phase.share is None and (steps := phase.config.training.max_steps):
            check_phase_warmup(phase, steps)


def known_steps(training: TrainingConfig, phase: Phase | None, batch_examples: int | None) -> int | None:
    """Returns the number of steps of a run or phase; None if it depends on the corpus or on the model.

    Args:
        training: training settings of the run or phase.
        phase: phase of the run; None for a run without phases.
        batch_examples: average number of documents per step; None if a step has the configured number of sequences.

    Raises:
        ConfigError: the phase is shorter than one step.
    """
    if training.epochs or training.max_flops or (batch_examples and training.max_tokens):
        return None
    length = length_of(training, sys.maxsize)
    return phase.steps(length) if phase else length.steps


def check_phase_warmup(phase: Phase, steps: int) -> None:
    """Refuses a phase of `steps` steps that would end during its warm-up.

    Raises:
        ConfigError: names the phase.
    """
    if (warmup := phase.config.training.warmup_steps or 0) > steps:
        raise ConfigError(
            f"{_place(phase.number)}: warmup_steps {warmup} is longer than the phase of {steps} steps",
            f"use at most {steps}",
        )


def check_ramps(config: Config) -> None:
    """Refuses ramps that do not ascend, or that contradict other fields of the configuration.

    Raises:
        ConfigError: names the ramp.
    """
    training = config.training
    finals = {"batch_ramp": "global_batch_size", "length_ramp": "sequence_length"}
    for name, final in finals.items():
        if not (ramp := getattr(training, name)):
            continue
        ends, values = [end for end, _ in ramp], [*(value for _, value in ramp), getattr(training, final)]
        for numbers, of in (
            (ends, "token counts"),
            (values, f"values, with training.{final} {values[-1]} at the end,"),
        ):
            if any(after <= before for before, after in pairwise(numbers)):
                raise ConfigError(
                    f"training.{name} is {[list(entry) for entry in ramp]}, but its {of} do not increase",
                    "sort the entries",
                )
        if training.phases:
            raise ConfigError(
                f"training.{name} and training.phases are both set",
                f"set {final} in each phase, or leave training.phases out",
            )
        if config.corpus.streaming:
            raise ConfigError(
                f"training.{name} is set, but a streamed corpus is cut into batches of one size",
                "leave it out, or prepare the corpus (corpus.streaming false)",
            )
    if training.length_ramp and config.mixture.replay_last is not None:
        raise ConfigError(
            "training.length_ramp is set, but mixture.replay_last changes the share of replayed rows, for which all"
            " rows must have the same length",
            "leave one of the two out",
        )


def check_batches(config: Config, phases: Sequence[Phase]) -> None:
    """Refuses phases and ramps that change the batch size, if `tapt.batch_examples` determines the batch size.

    Raises:
        ConfigError: names the phase or the ramp.
    """
    if config.training.batch_ramp:
        raise ConfigError(
            "training.batch_ramp is set, but tapt.batch_examples determines the batch size",
            "set tapt.batch_examples to null",
        )
    for phase, own in zip(config.training.phases, phases, strict=True):
        in_steps = own.share and own.config.training.max_tokens and not config.training.max_tokens
        if phase.global_batch_size or in_steps:
            raise ConfigError(
                f"{_place(own.number)} has its own"
                f" {'global_batch_size' if phase.global_batch_size else 'sequence_length in a run of max_steps'}, but"
                " tapt.batch_examples determines the batch size",
                "set tapt.batch_examples to null",
            )


def _place(number: int) -> str:
    return f"training.phases, entry {number}"


def _shares(config: Config) -> list[tuple[float, float] | None]:
    """Returns begin and end of each phase as shares of the run; None for phases with a length in steps or tokens.

    Raises:
        ConfigError: the phases do not add up to the run.
    """
    training, phases = config.training, config.training.phases
    for number, phase in enumerate(phases, start=1):
        lengths = [name for name in ("steps", "tokens", "fraction") if getattr(phase, name) is not None]
        if len(lengths) > 1:
            raise ConfigError(f"{_place(number)} has {' and '.join(lengths)}", "set only one of them")
    rests = [number for number, phase in enumerate(phases, start=1) if _is_rest(phase)]
    if len(rests) > 1:
        raise ConfigError(
            f"training.phases: entries {' and '.join(map(str, rests))} have no length",
            "give steps, tokens or fraction to all phases but one, which takes the rest of the run",
        )
    fixed = [phase for phase in phases if phase.steps or phase.tokens]
    limits = [name for name in LIMITS if getattr(training, name)]
    if len(fixed) == len(phases):
        if limits:
            raise ConfigError(
                f"training.{limits[0]} is set, but the phases of training.phases have lengths of their own",
                f"leave training.{limits[0]} out, or give the phases fractions of the run",
            )
        return [None] * len(phases)
    taken = sum(phase.fraction or 0.0 for phase in phases)
    if fixed:
        taken += sum(_tokens(phase, training) for phase in fixed) / _run_tokens(training)
    if taken > 1 + 1e-9 or (rests and taken > 1 - 1e-9):
        left = f", and leave nothing for entry {rests[0]}" if rests else ""
        raise ConfigError(
            f"the phases of training.phases add up to {taken:.4g} of the run{left}", "shorten some phases"
        )
    if not rests and taken < 1 - 1e-9:
        raise ConfigError(
            f"the phases of training.phases add up to {taken:.4g} of the run",
            "make them add up to 1, or leave the length of one phase out: it takes the rest",
        )
    shares: list[tuple[float, float] | None] = []
    end = 0.0
    for phase in phases:
        if phase.steps or phase.tokens:
            shares.append(None)
            continue
        begin, end = end, round(end + (1 - taken if _is_rest(phase) else phase.fraction or 0.0), 12)
        shares.append((begin, end))
    return shares


def _is_rest(phase: PhaseConfig) -> bool:
    return phase.steps is phase.tokens is phase.fraction is None


def _tokens(phase: PhaseConfig, training: TrainingConfig) -> int:
    batch = phase.global_batch_size or training.global_batch_size
    return phase.tokens or (phase.steps or 0) * batch * (phase.sequence_length or training.sequence_length)


def _run_tokens(training: TrainingConfig) -> int:
    """Returns the number of tokens of a run in which some, but not all, phases have a length as a share of the run.

    Raises:
        ConfigError: the number depends on the corpus or the model.
    """
    unknown = [name for name in ("epochs", "max_flops") if getattr(training, name)]
    if unknown:
        raise ConfigError(
            "training.phases has some lengths in steps or tokens, and others as fractions of a run whose length is"
            f" training.{unknown[0]}",
            "give all phases fractions, or all of them steps or tokens",
        )
    step = training.global_batch_size * training.sequence_length
    steps = training.max_steps or (None if training.max_tokens else PAPER_STEPS)
    return min(tokens for tokens in (steps and steps * step, training.max_tokens) if tokens)


def _in_phase(config: Config, phase: PhaseConfig, number: int, share: tuple[float, float] | None) -> Config:
    """Returns the configuration with a phase's own values.

    Raises:
        ConfigError: a field of the phase is unknown, has a wrong value, or cannot differ between phases.
    """
    base = config.training
    batch = phase.global_batch_size or base.global_batch_size
    length = phase.sequence_length or base.sequence_length
    training = replace(
        base,
        phases=[],
        learning_rate=phase.learning_rate or base.learning_rate,
        schedule="wsd" if phase.schedule == "one_minus_sqrt" else phase.schedule,
        decay="one_minus_sqrt" if phase.schedule == "one_minus_sqrt" else "linear",
        cooldown_fraction=1.0 if phase.schedule == "one_minus_sqrt" else base.cooldown_fraction,
        floor_fraction=phase.floor_fraction,
        warmup_steps=phase.warmup_steps,
        global_batch_size=batch,
        sequence_length=length,
        **_limits(base, phase, share, batch * length),
    )
    objective, options = _objective(config, phase, f"{_place(number)}, objective")
    allowed = [name for name in phase.mixture if name not in MIXED and hasattr(config.mixture, name)]
    if allowed:
        raise ConfigError(
            f"{_place(number)}, mixture has {allowed[0]}, which must be the same in all phases",
            f"set mixture.{allowed[0]} for the whole run",
        )
    mixture: MixtureConfig = _changed(config.mixture, phase.mixture, f"{_place(number)}, mixture")
    corpus = config.corpus
    if phase.weights:
        names = [source.name for source in corpus.sources]
        if not names or mixture.order == "sequential":
            why = "mixture.order is sequential" if names else "the training has no list of corpus.sources"
            raise ConfigError(f"{_place(number)} has weights, but {why}", "leave weights out")
        if wrong := next((name for name in phase.weights if name not in names), None):
            raise ConfigError(
                f"{_place(number)}, weights has {wrong!r}, which is not one of corpus.sources", nearest(wrong, names)
            )
        if not any(phase.weights.values()):
            raise ConfigError(f"{_place(number)}: all weights are 0", "give a source a weight above 0")
        sources = [replace(source, weight=phase.weights.get(source.name, 0.0)) for source in corpus.sources]
        corpus = replace(corpus, sources=sources)
    return replace(
        config, training=training, objective=objective, objective_options=options, mixture=mixture, corpus=corpus
    )


def _objective(config: Config, phase: PhaseConfig, name: str) -> tuple[ObjectiveConfig, Any]:
    """Returns a phase's objective and its options. A phase may set them in a section with the objective's name."""
    kind = str(phase.objective.get("kind", config.objective.kind))
    section = section_of(kind)
    fields = {field: value for field, value in phase.objective.items() if field != section}
    objective: ObjectiveConfig = _changed(config.objective, fields, name)
    OBJECTIVES.place(kind)
    if kind == config.objective.kind and section not in phase.objective:
        return objective, config.objective_options
    return objective, OBJECTIVES.read(kind, phase.objective.get(section, {}))


def _limits(
    base: TrainingConfig, phase: PhaseConfig, share: tuple[float, float] | None, tokens_per_step: int
) -> dict[str, Any]:
    """Returns the length limits of a phase.

    If the run has a limit of steps, but the phase has a different number of tokens per step, the limit is converted to
    tokens. The phase then gets its share of the run's tokens.
    """
    if share is None:
        return {"max_steps": phase.steps, "max_tokens": phase.tokens, "max_flops": None, "epochs": None}
    usual = base.global_batch_size * base.sequence_length
    steps = base.max_steps or (None if any(getattr(base, name) for name in LIMITS) else PAPER_STEPS)
    if steps is None or tokens_per_step == usual:
        return {}
    tokens = min(steps * usual, base.max_tokens or steps * usual)
    return {"max_steps": None, "max_tokens": tokens}


def _changed(section: Any, values: Mapping[str, Any], name: str) -> Any:
    known = hints_of(type(section))
    if wrong := next((field for field in values if field not in known), None):
        raise ConfigError(f"unknown key {wrong} in {name}", nearest(wrong, known))
    return read_fields(type(section), {**asdict(section), **values}, name) if values else section


def _check_modules(phases: Sequence[Phase]) -> None:
    """Refuses phases that train different modules, because the optimizer's state could not be continued.

    Objectives with their own options, such as replaced-token detection, train modules in addition to the model.
    """
    kinds = [phase.config.objective.kind for phase in phases]
    own = next((kind for kind in kinds if OBJECTIVES.options(kind) is not None), None)
    if own and (other := next((kind for kind in kinds if kind != own), None)):
        raise ConfigError(
            f"training.phases has the objectives {own} and {other}, but {own} trains modules that {other} lacks",
            "train them as two jobs: in a chain file, the second starts `from` the first",
        )


def _check_streamed(config: Config, phase: Phase) -> None:
    if not config.corpus.streaming:
        return
    own = phase.config
    for name in ("sequence_length", "global_batch_size"):
        if getattr(own.training, name) != getattr(config.training, name):
            raise ConfigError(
                f"{_place(phase.number)} has its own {name}, but a streamed corpus is cut into batches of one size",
                "leave it out, or prepare the corpus (corpus.streaming false)",
            )
    if own.mixture != config.mixture:
        raise ConfigError(f"{_place(phase.number)} has a mixture, but a streamed corpus has one source", "leave it out")
