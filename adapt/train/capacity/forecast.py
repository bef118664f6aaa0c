"""Forecasts memory, FLOPs, hours and price of a training run before it starts. Some values may not be known yet."""

from dataclasses import dataclass, field
from pathlib import Path

from adapt.config import Config
from adapt.model.architecture import Way
from adapt.model.size import ModelSize, model_size
from adapt.runner.store import Store
from adapt.terminal.console import duration
from adapt.train.capacity.device import Device, known_device, measured
from adapt.train.capacity.flops import added_work, training_flops, workload
from adapt.train.capacity.memory import GIB, Fit, does_not_fit, fit

REACHED = 0.4
"""Ratio of training speed to matrix multiplication rate, assumed if no earlier training run was measured."""


@dataclass(frozen=True)
class Forecast:
    """Forecast of a training run. A value that is not known is None."""

    parameters: int
    fit: Fit | None = None
    refusal: str = ""
    """Reason why the training run will be refused. Empty if it fits the devices."""
    tokens: int | None = None
    flops: float | None = None
    rate: float | None = None
    """Training speed of one device [FLOP/s]."""
    rate_from: str = ""
    """Text that names the source of `rate`."""
    price_per_hour: float | None = None
    padding: str = ""
    """Text that describes the cost of padding each document to a full row. Empty for models that accept packed
    documents."""
    missing: list[str] = field(default_factory=list)
    """Descriptions of the missing facts that leave some values of the forecast None."""

    @property
    def device_hours(self) -> float | None:
        """Sum of the training time over all devices [h]."""
        return self.flops / self.rate / 3600 if self.flops and self.rate else None

    @property
    def cost(self) -> float | None:
        """Cost of the training run, in the currency of the price."""
        hours, price = self.device_hours, self.price_per_hour
        return None if hours is None or price is None else hours * price

    def lines(self) -> dict[str, str]:
        """Formats the forecast for people, as lines keyed by topic."""
        lines = {"parameters": f"{self.parameters:,}"}
        if self.fit:
            chosen, memory = self.fit, self.fit.memory
            parts = ", ".join(f"{name} {in_bytes(value)}" for name, value in memory.parts().items() if value >= 2**20)
            lines["memory per device"] = f"{in_bytes(memory.total)} of {in_bytes(chosen.available)}: {parts}"
            if memory.host:
                lines["memory of the machine"] = f"{in_bytes(memory.host)} for offloaded parts"
            sequences = "1 sequence" if chosen.micro_batch == 1 else f"{chosen.micro_batch} sequences"
            passes = "1 pass" if chosen.accumulation == 1 else f"{chosen.accumulation} passes"
            lines["micro-batch"] = f"{sequences} per pass, {passes} per step"
        if self.refusal:
            lines["refused"] = self.refusal
        if self.padding:
            lines["padding"] = self.padding
        if self.flops:
            lines["work"] = f"{self.tokens:,} tokens, {self.flops:.2e} FLOPs"
        if self.device_hours is not None:
            lines["device time"] = (
                f"about {duration(self.device_hours * 3600)} ({self.device_hours:.3g} device-hours) at "
                f"{(self.rate or 0) / 1e9:,.0f} GFLOP/s per device, {self.rate_from}"
            )
        if self.cost is not None:
            lines["cost"] = f"about {self.cost:,.2f}"
        if self.missing:
            lines["not known"] = "; ".join(self.missing)
        return lines


@dataclass(frozen=True)
class DocumentsAsRows:
    """The documents of the first steps, for a model that computes each document as a padded row."""

    way: Way
    rows: list[list[int]] | None
    """Lengths of the documents in each row of the packed text, for the first steps [tokens]. None if the text is not
    prepared yet."""


def forecast(
    config: Config,
    dimensions: ModelSize,
    tokens: int | None,
    document_length: float | None,
    store: Store,
    as_rows: DocumentsAsRows | None = None,
) -> Forecast:
    """Forecasts the memory, FLOPs, duration and cost of a training run.

    Args:
        config: configuration of the job.
        dimensions: dimensions of the job's model.
        tokens: number of tokens to train on. None if the number depends on a corpus that is not prepared yet.
        document_length: mean length of the documents of the prepared corpus [tokens].
        store: storage with the records of earlier training runs, which show the speed of the devices.
        as_rows: documents of a model that computes each document as a row. None for a model that accepts packed
            documents.
    """
    training, resources = config.training, config.resources
    missing, refusal, chosen = [], "", None
    device = known_device(resources)
    if device:
        chosen = fit(config, dimensions, device, document_length)
        if not chosen.fits:
            refusal = str(does_not_fit(chosen, config, dimensions, device, document_length))
    else:
        missing.append("the cluster's devices (read when the job runs; or set resources.device_memory_gib)")
    added = added_work(config, passes=chosen.accumulation if chosen else 1)
    work = workload(config.objective, training.sequence_length, document_length, added)
    padded, share = _padding(as_rows, config, device, chosen.micro_batch if chosen else None)
    flops = tokens and tokens * training_flops(dimensions, work, training.gradient_checkpointing, share)
    if as_rows and as_rows.rows is None:
        missing.append(
            "the share of padding, because this model computes documents as rows, and the text is not prepared yet"
        )
    rate, rate_from = expected_rate(config, device, store) if flops else (None, "")
    if tokens is None:
        missing.append("the size of the corpus, which is not prepared yet, and so the length of the run")
    elif rate is None:
        missing.append("the speed of the devices: no training in this storage has been measured on them")
    if resources.price_per_device_hour is None:
        missing.append("the price (resources.price_per_device_hour)")
    return Forecast(
        dimensions.parameters,
        chosen,
        refusal,
        tokens,
        flops,
        rate,
        rate_from,
        resources.price_per_device_hour,
        padded,
        missing,
    )


def _padding(
    as_rows: DocumentsAsRows | None, config: Config, device: Device | None, micro_batch: int | None
) -> tuple[str, float]:
    """Returns a text that describes the cost of padding each document to a full row, and the share of padding.

    The text is empty and the share is 0 if documents are packed or the corpus is not prepared yet.
    """
    if as_rows is None or not as_rows.rows:
        return "", 0.0
    from adapt.model.packing.padded import padding_of  # loads torch

    rows, asked = as_rows.rows, config.training.micro_batch
    size = micro_batch or (asked if isinstance(asked, int) else len(rows))
    passes = [[length for row in rows[start : start + size] for length in row] for start in range(0, len(rows), size)]
    at_once = config.resources.zero_stage == 3
    found = padding_of(passes, as_rows.way, "cuda" if device and device.on_gpu else "cpu", at_once)
    return str(found), found.share


def may_fit(config: Config, model: Path) -> bool:
    """Returns whether a training run fits its devices.

    Returns true if the devices or the model's dimensions are not known without Ray.
    """
    size, device = model_size(model), known_device(config.resources)
    return size is None or device is None or fit(config, size, device).fits


def expected_rate(config: Config, device: Device | None, store: Store) -> tuple[float | None, str]:
    """Returns the training speed of a device [FLOP/s], and a text that names its source.

    This is the speed of the last recorded training run on a device of this kind. Without such a record, the function
    measures the matrix multiplication rate, and returns the share REACHED of it.
    """
    precision = device.precision(config.training.precision) if device else config.training.precision
    for record in sorted(store.records("train"), key=lambda record: record.started_at, reverse=True):
        resources, flops = record.resources, record.metrics.get("flops")
        is_same_device = device is None or not device.name or resources.get("device") == device.name
        if flops and is_same_device and precision in ("auto", resources.get("precision")):
            return flops / record.metrics["device_seconds"], f"as {record.path.name} reached on {resources['device']}"
    if device is None or not device.name:
        return None, ""
    _, fastest = measured(config.resources, config.training.precision)
    return REACHED * fastest, f"{REACHED:.0%} of the speed of large matrix products on this machine"


def in_bytes(number: float) -> str:
    """Formats a number of bytes for people."""
    return f"{number / GIB:.1f} GiB" if number >= GIB / 10 else f"{number / 2**20:.0f} MiB"
