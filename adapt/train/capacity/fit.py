"""How many sequences may pass a device at once, and whether a configuration fits its memory at all."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from adapt.config import Config, Workers, fewest_of, most_of
from adapt.errors import ConfigError
from adapt.method.table import method_of
from adapt.model.size import ModelSize
from adapt.train.capacity.device import Device
from adapt.train.capacity.memory import GIB, Demand, Memory, estimate
from adapt.train.schedule import micro_batch

USED = 0.8
"""Share of the memory that an automatic micro-batch may fill: the estimate is not exact, and allocators waste some."""
CPU_TOKENS, GPU_TOKENS = 8_192, 65_536
"""Tokens a pass beyond which an automatic micro-batch does not grow: with these, matrices are large enough for a device
to multiply at its full rate, so more would take memory and give no speed."""


@dataclass(frozen=True)
class Fit:
    """A micro-batch and the memory it takes."""

    micro_batch: int
    accumulation: int
    memory: Memory
    available: int
    """Memory of a worker's device [bytes]."""

    @property
    def fits(self) -> bool:
        """Whether the estimate is within the device's memory."""
        return self.memory.total <= self.available


def fit(config: Config, size: ModelSize, device: Device, document_length: float | None = None) -> Fit:
    """The configured micro-batch, or for `auto` the largest that leaves a fifth of the memory; at least 1.

    Args:
        config: the job's.
        size: of its model.
        device: where a worker runs.
        document_length: mean of the corpus [tokens]; None where it is not known yet.

    Raises:
        ConfigError: the global batch cannot be shared equally among the workers.
    """
    training, workers = config.training, config.resources.workers
    precision = device.precision(training.precision)
    available = device.memory_per_worker

    def tried(sequences: int) -> Fit:
        setting = Demand.of(config, sequences, precision, device.on_gpu, document_length)
        return Fit(*micro_batch(training, workers, sequences), estimate(size, setting), available)

    if training.micro_batch != "auto":
        return tried(micro_batch(training, workers)[0])
    candidates = map(tried, micro_batch_sizes(config, device.on_gpu))
    return next((candidate for candidate in candidates if candidate.memory.total <= USED * available), tried(1))


def micro_batch_sizes(config: Config, on_gpu: bool) -> list[int]:
    """The micro-batches that `auto` chooses from, largest first: they divide a worker's share of the global batch.

    A method that compares rows has more to do in several passes than in one, so there one is tried first.
    """
    share, _ = micro_batch(replace(config.training, micro_batch="auto"), config.resources.workers)
    most = max(1, (GPU_TOKENS if on_gpu else CPU_TOKENS) // config.training.sequence_length)
    in_one_pass = [share] if share > most and method_of(config).added_passes().trained else []
    return in_one_pass + [number for number in range(min(share, most), 0, -1) if share % number == 0]


def size_of_training(config: Config, size: ModelSize, number: int) -> ModelSize:
    """The dimensions of the model that a training trains, which its method may have made larger.

    Args:
        config: the job's.
        size: of the model that the first of all domains begins with.
        number: of the training's domain, from 1.
    """
    return method_of(config).trained_size(size, range(1, number + 1))


def check_fits(config: Config, size: ModelSize, device: Device, document_length: float | None = None) -> Fit:
    """Refuses a training that its devices cannot hold, before anything is prepared.

    Raises:
        ConfigError: names the estimate, the memory, and the nearest configuration that fits.
    """
    chosen = fit(config, size, device, document_length)
    if chosen.fits:
        return chosen
    parts = sorted(chosen.memory.parts().items(), key=lambda part: -part[1])
    listed = ", ".join(f"{name} {value / GIB:.1f}" for name, value in parts if value >= 0.05 * GIB)
    raise ConfigError(
        f"the training does not fit: with {chosen.micro_batch} sequences a pass, a worker needs about "
        f"{chosen.memory.total / GIB:.1f} GiB ({listed}), and its device has {chosen.available / GIB:.1f} GiB",
        _nearest(config, size, device, document_length),
    )


def _nearest(config: Config, size: ModelSize, device: Device, document_length: float | None) -> str:
    for changes in _changes(config, device):
        changed = _with(config, changes)
        shared_by = device.shared_by
        if not device.on_gpu and shared_by > 1:  # more workers on a machine have less of it each
            shared_by = shared_by * most_of(changed.resources.workers) // most_of(config.resources.workers)
        tried = fit(changed, size, replace(device, shared_by=shared_by), document_length)
        if tried.fits:
            if config.training.micro_batch != "auto" and tried.micro_batch < config.training.micro_batch:
                changes = {"training.micro_batch": tried.micro_batch, **changes}
            return "this fits: " + " ".join(f"--{name} {_word(value)}" for name, value in changes.items())
    return (
        "choose a smaller model or devices with more memory; if they have more than is said here, "
        "say so with resources.device_memory_gib"
    )


def _changes(config: Config, device: Device) -> Iterator[dict[str, object]]:
    """Yields what could be changed, the least harmful first; each set of changes goes on from the one before it."""
    changes: dict[str, object] = {}
    yield dict(changes)  # nothing but the micro-batch, which `_with` sets to auto
    if not config.training.gradient_checkpointing:
        changes["training.gradient_checkpointing"] = True
        yield dict(changes)
    for workers in _workers(config):
        if workers != config.resources.workers:
            changes["resources.workers"] = workers
        for zero_stage in range(max(1, config.resources.zero_stage), 4) if fewest_of(workers) > 1 else ():
            if zero_stage > config.resources.zero_stage:
                changes["resources.zero_stage"] = zero_stage
            yield dict(changes)
        changes.pop("resources.zero_stage", None)
        if device.on_gpu:
            for zero_stage, offload in ((2, "optimizer"), (3, "all")):
                zero_stage = max(zero_stage, config.resources.zero_stage)
                yield {**changes, "resources.zero_stage": zero_stage, "resources.offload": offload}


def _workers(config: Config) -> list[Workers]:
    """The configured number of workers, then larger numbers that share the global batch equally."""
    batch, configured = config.training.global_batch_size, config.resources.workers
    larger = [number for number in range(fewest_of(configured) + 1, batch + 1) if batch % number == 0]
    if isinstance(configured, int):
        return [configured, *larger]
    return [configured, *((number, max(number, configured[1])) for number in larger)]


def _with(config: Config, changes: dict[str, object]) -> Config:
    """The configuration with an automatic micro-batch, and with other values for some fields by dotted name."""
    for name, value in {"training.micro_batch": "auto", **changes}.items():
        section, field = name.split(".")
        config = replace(config, **{section: replace(getattr(config, section), **{field: value})})
    return config


def _word(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"  # without blanks, which a shell would part
    return str(value).lower() if isinstance(value, bool) else str(value)
