"""Defines the result of a training run (its metrics), and shows the words that the trained model guesses."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adapt.evaluate.while_training import BEFORE, TASK, Sampling
from adapt.runner import Outcome
from adapt.runner.record import Record, cost_of
from adapt.show.blocks import Block, Cell, Figures, Table, TextBlock
from adapt.show.drawing import heldout_curves
from adapt.stage.training_plan import SourceShare
from adapt.support.better import Less, More
from adapt.train.held_time import LOSSES, HeldTime
from adapt.train.restarts import Restarts, summed_restarts
from adapt.train.stopping import PAST, EarlyEnd, Point, as_points, is_loss, metric_words

RAN_ON = (
    *("workers", "zero_stage", "offload", "precision", "micro_batch", "accumulation", "micro_batch_asked"),
    *("gradient_checkpointing", "compile", "device", "documents", "padding"),
)
"""Entries of the record of stage `train` that describe devices and settings of the training run."""


@dataclass(frozen=True)
class Trained:
    """Result of a training run: its metrics. The model is in the folder `model`."""

    steps: int
    """Number of optimizer steps, including steps of earlier phases."""
    tokens: int
    """Number of tokens that the model was trained on, including tokens of earlier phases."""
    tokens_per_s: More[float]
    """Tokens per second, over all devices."""
    data_wait_share: Less[float]
    """Share of the training time in which devices waited for text."""
    device_seconds: Less[float]
    """Time of all training steps, summed over the devices [s]."""
    flops: Less[float | None]
    """Floating point operations of the forward and backward passes, with recomputation and padding."""
    mfu: More[float | None]
    """Model FLOPs utilization, without recomputation and padding."""
    peak_memory_bytes: Less[int | None]
    """Peak memory of the device that used most. None if it was not measured."""
    transductive: bool
    """Whether this model or its initial model was trained on the text of dev or test examples."""
    parameters: Less[int | None] = None
    """Number of parameters of the trained model. Tied parameters count once."""
    sources: dict[str, SourceShare] | None = None
    """Rows and tokens that the run read from each source, keyed by source name. None if the corpus is streamed."""
    cut_short: str = ""
    """Message about what the method could not complete because a streamed corpus ended early. Empty if nothing is
    missing."""
    spikes: list[int] = field(default_factory=list)
    """Numbers of the steps that were skipped as spikes, counted from 1, including steps of earlier phases."""
    restarts: Restarts | None = None
    """How often the training run restarted, why, and at what cost. None in records of earlier versions."""
    goodput: More[float | None] = None
    """Time of the steps that led to the model, divided by the time for which the run reserved its devices."""
    held_device_seconds: Less[float | None] = None
    """Time for which the training run reserved devices, in all attempts, summed over the devices [s]."""
    lost_device_seconds: dict[str, float] | None = None
    """Lost part of `held_device_seconds` [s], by cause (`adapt.train.held_time.Loss`). None in older records."""
    points: list[Point] = field(default_factory=list)
    """Held-out losses while the model trained. Empty without evaluation.interval_steps."""
    sampling: Sampling | None = None
    """How often and on how many documents the losses in `points` were measured."""
    evaluation_share: float | None = None
    """Share of the training's time that the measurements took. None without measurements."""
    early_end: EarlyEnd | None = None
    """How a rule of training.stop ended the training run. None if all steps were trained."""
    exported_step: int | None = None
    """Step of the exported model, if measurements chose it (`training.keep: best`, or a forgetting budget). None if the
    model of the last step is exported."""


def held_figures(held: HeldTime | None) -> dict[str, Any]:
    """Returns the fields of `Trained` on the time for which devices were reserved. They are None if `held` is None."""
    return {
        "goodput": held and held.goodput,
        "held_device_seconds": held and held.held,
        "lost_device_seconds": held and {cause: round(seconds, 3) for cause, seconds in held.lost.items()},
    }


def held_time_of(trained: Trained) -> HeldTime | None:
    """Returns the time for which a training run reserved its devices, or None if the run's record lacks this time."""
    held, lost = trained.held_device_seconds, trained.lost_device_seconds
    if held is None or lost is None or trained.goodput is None:
        return None
    return HeldTime(held, trained.goodput * held, {cause: lost.get(cause, 0.0) for cause in LOSSES})


def outcome_of(
    reported: Mapping[str, Any],
    price_per_hour: float | None,
    knows: bool,
    sources: dict[str, SourceShare] | None,
    sampling: Sampling | None = None,
) -> Outcome[Trained]:
    """Builds the result of a training run from the metrics that its workers reported.

    Args:
        reported: the metrics that `adapt.train.ray_train.launch` returns.
        price_per_hour: price of one device per hour.
        knows: whether the model was trained on the text of dev and test.
        sources: share of each source.
        sampling: how the model was measured while it trained. None if it was not measured.
    """
    seconds, held = max(reported["seconds"], 1e-9), reported.get("held")
    measuring, end = reported.get("evaluation_seconds", 0.0), reported.get("early_end")
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
        spikes=reported.get("skipped", []),
        restarts=reported.get("restarts"),
        **held_figures(held),
        points=as_points(reported.get("points", [])),
        sampling=sampling,
        evaluation_share=measuring / (seconds + measuring) if sampling else None,
        early_end=EarlyEnd(**end) if end else None,
        exported_step=reported.get("exported_step"),
    )
    spent = reported["device_seconds"] if held is None else held.held
    cost = {**cost_of(spent, price_per_hour), "tokens": reported["own_tokens"]}
    return Outcome(trained, cost, {name: reported.get(name) for name in RAN_ON})


def chosen_by(trained: Trained) -> dict[str, tuple[int, float | None]]:
    """Returns the number of measured documents, and the loss at the exported step, keyed by text."""
    if not trained.sampling or not trained.points:
        return {}
    step = trained.points[-1].step if trained.exported_step is None else trained.exported_step
    (point,) = (point for point in trained.points if point.step == step)
    return {
        text: (count, point.figures.get(f"{text}_loss"))
        for text, count in trained.sampling.documents.items()
        if not text.startswith((BEFORE, TASK))
    }


def measured_blocks(trained: Trained, name: str) -> list[Block]:
    """Plots the held-out losses while the model trained, and describes the cost of measuring them.

    Args:
        trained: result of the training.
        name: name of the plot, which must be unique on the page.
    """
    curves: dict[str, list[tuple[int, float]]] = {}
    for point in trained.points:
        for metric, value in point.figures.items():
            if is_loss(metric):
                curves.setdefault(metric, []).append((point.step, value))
    if len([metric for metric in curves if metric.startswith(f"{PAST}.")]) == 1:
        curves.pop(PAST)  # this mean equals the loss of the only earlier domain
    if not curves or max(map(len, curves.values())) < 2:
        return []
    exported = trained.exported_step if trained.exported_step != trained.points[-1].step else None
    mark = f"; dashed line: the exported model (step {exported:,})" if exported is not None else ""
    legend = [(metric_words(metric).removeprefix("the loss on "), number) for number, metric in enumerate(curves, 1)]
    drawing = heldout_curves(curves, name, f"Held-out loss while the model trained{mark}", exported)
    said = ""
    if trained.sampling and trained.evaluation_share is not None:
        said = f"Measured: {trained.sampling.sentence(trained.sampling.interval)}; measuring took"
        said += f" {trained.evaluation_share:.1%} of the time."
    return [Figures([drawing], legend), *([TextBlock(said)] if said else [])]


def whole_run(phases: Sequence[Trained]) -> Trained:
    """Combines the results of all phases of a run into the result of the run."""
    last, seconds = phases[-1], [phase.device_seconds for phase in phases]
    if len(phases) == 1:
        return last
    ends = [0, *(phase.tokens for phase in phases)]
    tokens = [phase.tokens - begin for phase, begin in zip(phases, ends, strict=False)]
    took = sum(count / max(phase.tokens_per_s, 1e-9) for phase, count in zip(phases, tokens, strict=True))
    flops = [phase.flops for phase in phases]
    peaks = [phase.peak_memory_bytes for phase in phases if phase.peak_memory_bytes is not None]
    shares = [phase.sources for phase in phases if phase.sources is not None]
    times = [held for phase in phases if (held := held_time_of(phase))]
    all_held = sum(times, HeldTime()) if len(times) == len(phases) else None
    return replace(
        last,
        **held_figures(all_held),
        points=list({point.step: point for phase in phases for point in phase.points}.values()),
        tokens_per_s=last.tokens / max(took, 1e-9),
        data_wait_share=_weighted([phase.data_wait_share for phase in phases], seconds) or 0.0,
        device_seconds=sum(seconds),
        flops=None if None in flops else sum(flop or 0.0 for flop in flops),
        mfu=_weighted([phase.mfu for phase in phases], seconds),
        peak_memory_bytes=max(peaks, default=None),
        sources=_summed_shares(shares) if shares else None,
        restarts=summed_restarts([phase.restarts for phase in phases]),
    )


def _weighted(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    known = [value for value in values if value is not None]
    total = sum(weights)
    if len(known) < len(values) or not total:
        return known[-1] if known else None
    return sum(value * weight for value, weight in zip(known, weights, strict=True)) / total


def _summed_shares(shares: Sequence[Mapping[str, SourceShare]]) -> dict[str, SourceShare]:
    rows = {name: sum(of[name].rows for of in shares) for name in shares[0]}
    everything = max(sum(rows.values()), 1)
    tokens = {name: sum(of[name].tokens for of in shares) for name in rows}
    return {name: SourceShare(count, tokens[name], count / everything) for name, count in rows.items()}


def skipped_steps(result: Mapping[str, Any]) -> str:
    """Describes the steps that a training run skipped as spikes. Empty if no step was skipped.

    Args:
        result: result of an export, as plain values.
    """
    spikes = result.get("spikes") or []
    listed = ", ".join(f"{step:,}" for step in spikes[:10]) + (" and others" if len(spikes) > 10 else "")
    return f"{len(spikes)} of {result['steps']:,} steps were skipped as spikes: {listed}" if spikes else ""


HIT = "\N{CHECK MARK}"
"""Mark of guesses that contain the hidden word."""


def guesses_table(record: Record) -> list[Block]:
    """Makes a table of held-out sentences with a hidden word, and the model's guesses before and after training."""
    before, after = (_examples(record, name) for name in ("before", "after"))
    if not before:
        return []
    rows: list[list[Cell | str]] = [
        [old["text"], old["answer"], _guess(old), _guess(new)] for old, new in zip(before, after, strict=True)
    ]
    title = "Held-out sentences with one hidden word, and the model's best guesses for it"
    header = ["sentence", "hidden word", "guesses before", "guesses after"]
    note = f"{HIT} marks guesses that contain the hidden word."
    return [Table(header, rows, title, note, words=True)]


def _examples(record: Record, evaluation: str) -> list[dict[str, Any]]:
    file = Path(record.inputs[evaluation]["path"]) / "examples.json"
    return list(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else []


def _guess(example: Mapping[str, Any]) -> Cell:
    words = [word for word, _ in example["guesses"]]
    is_hit = example["answer"] in words
    return Cell(", ".join(words), mark=f" {HIT}" if is_hit else "", strong=is_hit)
