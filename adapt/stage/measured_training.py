"""What a training measures while it runs: checks before it starts, and the measures with the texts that they read.

A new kind of measure, such as the score of a probe, is added in `measures_of`, and the names of its figures in
`metrics_of`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from adapt.config import Config
from adapt.evaluate.while_training import (
    HeldoutLosses,
    HeldoutText,
    Sampling,
    loss_metrics,
    sampling_of,
)
from adapt.method.base import Method
from adapt.method.table import method_of
from adapt.model.size import ModelSize
from adapt.objective.table import check_measured_in_training, measured_what
from adapt.runner import Done, Stage
from adapt.stage.prepare_text import Prepared
from adapt.stage.training_plan import RunPart
from adapt.support.errors import ConfigError
from adapt.terminal.console import log
from adapt.train.capacity.flops import mean_length, summed_sizes
from adapt.train.schedule import length_of
from adapt.train.stopping import PAST, check_rules, keeps_earlier

if TYPE_CHECKING:
    from adapt.train.points import PointMeasure  # loads torch


@dataclass(frozen=True)
class Watched:
    """What is measured while a training runs."""

    measures: "tuple[PointMeasure, ...]" = ()
    """The measures, which all run at the same points. Empty if nothing is measured."""
    sampling: Sampling | None = None
    """How often and on how many documents losses are measured."""

    @property
    def interval(self) -> int:
        """Number of steps between two measurements. 0 if nothing is measured."""
        return self.sampling.interval if self.sampling else 0


def metrics_of(config: Config, texts: Mapping[str, Stage[Prepared]]) -> dict[str, str]:
    """Returns the names of all figures that rules may judge. The value is the fix for one that is not measured."""
    return loss_metrics(texts)


def judged_what(config: Config) -> dict[str, Any]:
    """Returns the settings of measurements that decide when a training ends, which then enter its key."""
    evaluation = config.evaluation
    names = ("interval_steps", "share", "max_documents", "max_tokens", "sequence_length")
    return {**{name: getattr(evaluation, name) for name in names}, "objective": measured_what(config)}


def rules_so_far(config: Config, before: Sequence[str], order: Sequence[str]) -> Config:
    """Returns the configuration without rules to stop on domains that a sequence has not learnt yet.

    Args:
        config: configuration of a domain's training.
        before: the domains before.
        order: all domains of the sequence.
    """
    later = {f"{PAST}.{name}" for name in order if name not in before} | (set() if before else {PAST})
    rules = [rule for rule in config.training.rules if rule.metric not in later]
    if len(rules) == len(config.training.rules):
        return config
    return replace(config, training=replace(config.training, stop=rules or None))


def measures_of(
    name: str,
    part: RunPart,
    texts: Mapping[str, Stage[Prepared]],
    done: Done,
    size: ModelSize | None,
    is_phase: bool = False,
) -> Watched:
    """Returns what is measured while a training runs, and tells the user its cost.

    Args:
        name: name of the training.
        part: steps of the training.
        texts: texts to measure; empty if nothing is measured.
        done: finished stages.
        size: dimensions of the model; None if they are not known.
        is_phase: whether the training is a phase of a run.

    Raises:
        ConfigError: the training is too short for the settings, or a text that a rule needs has no held-out document.
    """
    config = part.config
    asked = config.evaluation.interval_steps
    if not texts or not asked:
        return Watched()
    stops = bool(config.training.rules)
    held = {text: done[stage].result for text, stage in texts.items()}
    measured = {text: HeldoutText(of.heldout_documents, of.heldout_tokens) for text, of in held.items()}
    length = mean_length(summed_sizes([vars(held["domain"])])) if "domain" in held else None
    sampling = sampling_of(config, part.first, part.last, measured, size, length, stops, is_phase)
    for text in texts.keys() - sampling.documents.keys():
        problem = f"{name}: no document of {text} is held out, so its loss is not measured"
        if stops:
            raise ConfigError(f"{problem}, and training.stop is set", "raise corpus.heldout_fraction")
        log(f"warning: {problem} while the model trains")
    if not sampling.documents:
        return Watched()
    log(f"{name}: {sampling.sentence(asked)}")
    folders = {text: str(done[texts[text]].path) for text in sampling.documents}
    return Watched((HeldoutLosses(folders, sampling.documents),), sampling)


def check_measures(config: Config, texts: Mapping[str, Stage[Prepared]]) -> None:
    """Refuses settings of the measurements while a model trains that can be seen to be wrong before it starts.

    Raises:
        ConfigError: names the field.
    """
    training, interval = config.training, config.evaluation.interval_steps
    check_rules(training, interval, metrics_of(config, texts))
    if not interval:
        return
    check_measured_in_training(config)
    is_known = not (training.phases or training.epochs or training.max_flops)
    if is_known and (steps := length_of(training, 2**63 - 1).steps) < interval:
        raise ConfigError(
            f"evaluation.interval_steps is {interval}, but the training has at most {steps} steps",
            f"set it to at most {steps}, or leave it out",
        )
    if not training.rules:
        return
    method = method_of(config)
    if not method.exports_trained:
        raise ConfigError(
            f"training.stop is set, but method.kind {config.method.kind} exports another model than the one in"
            " training, whose losses are measured",
            "leave training.stop out, or choose another method",
        )
    if keeps_earlier(training) and type(method).carry is not Method.carry:
        raise ConfigError(
            f"training.stop exports the model of an earlier step, but method.kind {config.method.kind} hands on what it"
            " has at the end",
            "set patience instead of rise, or choose another method",
        )
