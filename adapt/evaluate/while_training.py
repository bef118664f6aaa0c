"""Measures held-out losses while a model trains, and chooses how many documents are measured and how often.

The cost is computed and not timed, so that a training run with a stopping rule is measured at the same steps on every
machine. A forward pass costs a third of a training step's FLOPs per token (Kaplan et al., arXiv 2001.08361, 2.1). This
module loads no heavy library.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING

from adapt.config import Config
from adapt.model.size import ModelSize
from adapt.objective.table import measured_objective
from adapt.support.errors import ConfigError
from adapt.train.capacity.flops import added_work, forward_flops, training_flops, workload
from adapt.train.schedule import shapes_of
from adapt.train.stopping import PAST

if TYPE_CHECKING:
    from adapt.train.points import Figures, Place  # loads torch

BEFORE = "before."
"""Prefix of the names of measured texts that belong to earlier domains of a sequence."""
TASK = "task."
"""Prefix of the names of measured texts that are tasks."""
LEAST_DOCUMENTS, LEAST_EXAMPLES = 16, 64
"""Number of documents of each text, and of examples of each task, below which measurements become less frequent instead
of smaller."""


@dataclass(frozen=True)
class Sampling:
    """How often a model is measured while it trains, and on how many documents."""

    interval: int
    """Number of steps between two measurements."""
    documents: dict[str, int] = field(default_factory=dict)
    """Number of held-out documents that are measured, keyed by text: `domain`, `general`, earlier domains with the
    prefix `before.`, and tasks with the prefix `task.`. For tasks, it is the number of examples."""
    share: float = 0.0
    """Share of the training's floating point operations that all measurements together take."""

    def sentence(self, asked: int) -> str:
        """Describes the measurements and their cost."""
        texts = {"domain": "the domain", "general": "general text"}
        named = {text: texts.get(text, text.removeprefix(BEFORE).removeprefix(TASK)) for text in self.documents}
        on = ", ".join(f"{count:,} of {named[text]}" for text, count in self.documents.items())
        rarer = f" (evaluation.interval_steps {asked} would exceed evaluation.share)" if asked < self.interval else ""
        what = "held-out loss and probes" if any(text.startswith(TASK) for text in self.documents) else "held-out loss"
        said = f"{what} every {self.interval:,} steps{rarer} on the beginnings of documents"
        return f"{said} ({on}), about {self.share:.1%} of the compute"


@dataclass(frozen=True)
class HeldoutText:
    """The held-out text of a prepared corpus."""

    documents: int
    tokens: int


def sampling_of(
    config: Config,
    first: int,
    last: int,
    texts: Mapping[str, HeldoutText],
    size: ModelSize | None = None,
    document_length: float | None = None,
    chooses: bool = False,
    is_phase: bool = False,
) -> Sampling:
    """Returns how many documents are measured, so that all measurements cost at most `evaluation.share`.

    Each text gets at least LEAST_DOCUMENTS documents, if it has enough. The remaining cost is shared equally. A text
    with too few documents leaves the rest of its share to the other texts.

    Args:
        config: configuration of the training run, with its final batch size and length.
        first: number of steps of earlier phases.
        last: last step of the training.
        texts: held-out text, keyed by name. Texts without documents are left out.
        size: dimensions of the model; None if they are not known.
        document_length: mean length of the training's documents [tokens]; None if it is not known.
        chooses: whether these measurements decide which model is exported. If so, at most half of the documents are
            measured, so that the reported losses can be measured on other documents.
        is_phase: whether the training is a phase of a run. A phase may be shorter than the interval.

    Raises:
        ConfigError: the interval is longer than the training, or even two measurements would exceed the share.
    """
    evaluation, steps = config.evaluation, last - first
    asked = evaluation.interval_steps or steps
    if asked > steps and not is_phase:
        raise ConfigError(
            f"evaluation.interval_steps is {asked}, but the training has {steps} steps",
            f"set it to at most {steps}, or leave it out",
        )
    asked = min(asked, steps)
    lengths, most = {}, {}
    for text, held in texts.items():
        if held.documents:
            whole = held.tokens / held.documents
            lengths[text] = min(whole, evaluation.sequence_length)
            in_sample = min(held.documents, evaluation.max_documents, ceil(evaluation.max_tokens / max(whole, 1)))
            halved = chooses and not text.startswith(TASK)  # probes divide their dev examples themselves
            most[text] = max(1, in_sample // 2 if halved else in_sample)
    if not most:
        return Sampling(asked)
    trained = sum(shape.tokens for shape in shapes_of(config.training, steps))
    cost = _relative_cost(config, size, document_length, lengths)
    affordable = evaluation.share * trained / cost
    fewest = {text: LEAST_EXAMPLES if text.startswith(TASK) else LEAST_DOCUMENTS for text in most}
    least = {text: min(fewest[text], count) for text, count in most.items()}
    needed = sum(least[text] * lengths[text] for text in least)
    intervals = [min(every, steps) for every in range(asked, steps + asked, asked)]
    interval = next((every for every in intervals if _points(first, last, every) * needed <= affordable), 0)
    if not interval:
        share = needed * _points(first, last, steps) * cost / trained
        raise ConfigError(
            f"evaluation.interval_steps is set, but the training of {steps} steps is so short that measuring"
            f" {sum(least.values())} documents twice takes {share:.1%} of its compute, which is more than"
            f" evaluation.share ({evaluation.share:.1%})",
            f"set evaluation.share to {ceil(100 * share) / 100:g} or more, or leave evaluation.interval_steps out",
        )
    points = _points(first, last, interval)
    documents = _divided(affordable / points, lengths, least, most)
    tokens = sum(count * lengths[text] for text, count in documents.items())
    return Sampling(interval, documents, points * tokens * cost / trained)


def _points(first: int, last: int, interval: int) -> int:
    """Returns the number of measurements: before the first step, at multiples of the interval, after the last step."""
    return 1 + last // interval - first // interval + (last % interval > 0)


def _divided(
    tokens: float, lengths: Mapping[str, float], least: Mapping[str, int], most: Mapping[str, int]
) -> dict[str, int]:
    """Divides the tokens of a measurement among texts, and returns the number of documents of each text."""
    documents: dict[str, int] = {}
    rest = tokens - sum(least[text] * lengths[text] for text in least)
    for text in sorted(most, key=lambda each: (most[each] - least[each]) * lengths[each]):  # small texts first
        share = rest / (len(most) - len(documents))
        more = min(most[text] - least[text], int(share / lengths[text]))
        documents[text], rest = least[text] + more, rest - more * lengths[text]
    return {text: documents[text] for text in most}


def _relative_cost(
    config: Config, size: ModelSize | None, document_length: float | None, lengths: Mapping[str, float]
) -> float:
    """Returns the cost of measuring a token, divided by the cost of training on a token."""
    if size is None:
        return 1 / 3
    training = config.training
    trained = training_flops(
        size, workload(config.objective, training.sequence_length, document_length, added_work(config))
    )
    return forward_flops(size, workload(measured_objective(config), max(lengths.values()))) / trained


@dataclass(frozen=True)
class HeldoutLosses:
    """Measures held-out losses while a model trains (`adapt.train.points.PointMeasure`)."""

    folders: dict[str, str]
    """Folders of the prepared texts, keyed by the text's name."""
    documents: dict[str, int]
    """Number of documents to measure, keyed by text."""

    def ready(self, place: "Place") -> "Figures":
        """Prepares the measurements on a rank: reads the documents that this rank measures."""
        from adapt.evaluate.losses import TrainingLosses  # loads torch

        return TrainingLosses(place, self.folders, self.documents)


@dataclass(frozen=True)
class TaskProbe:
    """Measures the score of a probe while a model trains (`adapt.train.points.PointMeasure`)."""

    folder: str
    """Folder of the prepared task."""
    kind: str
    """`knn` or `linear`."""
    examples: int
    """Number of train and dev examples together."""

    def ready(self, place: "Place") -> "Figures":
        """Prepares the probe on a rank: reads the examples whose features this rank computes."""
        from adapt.evaluate.probe import Probe  # imported here, because it loads torch

        return Probe(place, self)


def probed_examples(train: int, dev: int, examples: int) -> tuple[int, int]:
    """Divides the examples of a probe between train and dev: half each, unless a split has fewer examples.

    Args:
        train: number of train examples.
        dev: number of dev examples whose text is not in train.
        examples: number of examples to divide.
    """
    asked = min(dev, examples // 2)
    known = min(train, examples - asked)
    return known, min(dev, examples - known)


def loss_metrics(texts: Iterable[str]) -> dict[str, str]:
    """Returns the names of the loss metrics of some texts, such as `domain_loss`, each with advice.

    The advice is "" if the metric is measured. Otherwise, it says how to have the metric measured.
    """
    known = set(texts)
    past = [text.removeprefix(BEFORE) for text in known if text.startswith(BEFORE)]
    fixes = {
        "domain": "choose the metric of a text that is measured",
        "general": "set evaluation.general_paths, or choose domain_loss",
    }
    return {
        **{f"{text}_loss": "" if text in known else fix for text, fix in fixes.items()},
        PAST: "" if past else f"use {PAST} only in a sequence of domains, for a domain after the first",
        **{f"{PAST}.{name}": "" for name in past},
    }
