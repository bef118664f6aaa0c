"""How much memory a training worker needs, part by part, and how many sequences fit. Loads no heavy library."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from math import ceil

from adapt.config import Config, TrainingConfig, Workers, fewest_of, most_of
from adapt.method.base import AddedMemory, Method
from adapt.method.table import method_of
from adapt.model.size import ModelSize
from adapt.model.trainable import trained_share
from adapt.support.errors import ConfigError
from adapt.train.capacity.device import Device
from adapt.train.capacity.flops import predicted_fraction
from adapt.train.schedule import micro_batch

GIB = 2**30
BUCKET = 50_000_000
"""Elements that ZeRO 1 to 3 sum over the ranks at once; room for one bucket in fp32 is reserved. DeepSpeed's default
is ten times that, 2 GB a device."""
GATHERED = 1_000_000_000
"""DeepSpeed's stage3_max_live_parameters [elements]: ZeRO 3 keeps up to so many gathered."""
SCORES = 256 * 2**20
"""Scores of the vocabulary that stand in memory at once [bytes]; see adapt.model.linear_losses."""
PROCESS_CPU = 1.0 * GIB
"""A worker's interpreter and libraries, and what the allocator holds back."""
PROCESS_GPU = 0.8 * GIB
"""The CUDA context, its kernels and the libraries' workspaces."""

# Bytes that autograd keeps of a layer, a token: (a s + b) a unit of hidden width and c s a unit of inner width, s being
# the size of a number in the pass's precision. Counted with torch.autograd.graph.saved_tensors_hooks on BERT, RoBERTa,
# DistilBERT, ModernBERT, GPT-2, GPT-NeoX, Llama and Qwen3 (tests/train/capacity/test_memory.py counts again).
_LAYER_NORM = (6, 12)
_RMS_NORM = (3, 28)  # written out in fp32, operation by operation
_INNER = {False: 2, True: 4}  # gated or not
_INNER_WRITTEN_OUT = 5
_WRITTEN_OUT = {"gelu_new", "gelu_fast", "gelu_python", "gelu_accurate", "quick_gelu"}
"""Activations that transformers writes out in elementary operations, each of which keeps its input."""
LONG = 1024
"""On CPUs, attention weights of shorter documents are written out, with dropout all: adapt.model.packing.attention."""


@dataclass(frozen=True)
class Memory:
    """What one worker holds at the most [bytes]."""

    parameters: float
    gradients: float
    optimizer: float
    """AdamW's two averages, and DeepSpeed's own copy of the parameters."""
    buffers: float
    """DeepSpeed's buckets and gathered parameters."""
    method: float
    """What the method holds all the time."""
    casts: float
    """What layers compute with and autograd keeps: the parameters in the precision of the pass, or the method's."""
    activations: float
    loss: float
    """Scores of the vocabulary, a piece at a time, and their gradients."""
    process: float
    host: float = 0.0
    """What offload leaves in the memory of the machine instead; not part of the total."""

    @property
    def total(self) -> float:
        """All parts on the device together."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """The device's parts by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "host"}


@dataclass(frozen=True)
class Demand:
    """What the memory of a worker depends on, besides the model."""

    micro_batch: int
    sequence_length: int
    workers: int
    zero_stage: int
    offload: str
    precision: str
    """fp32, bf16 or fp16."""
    gradient_checkpointing: bool
    predicted: float
    """Share of the tokens that are predicted."""
    attended: float
    """Tokens that a token attends to, on average; at most the sequence length."""
    on_gpu: bool
    copies: float = 1.0
    """How often the rows stand in a pass: a method may compare views of them."""
    method: Method = field(default_factory=Method)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Says which parameters are frozen."""

    @classmethod
    def of(
        cls, config: Config, micro_batch: int, precision: str, on_gpu: bool, document_length: float | None = None
    ) -> "Demand":
        """The demand of a configuration, with the fewest workers that it may have: they share ZeRO's parts.

        Args:
            config: the job's.
            micro_batch: sequences in one pass.
            precision: of the pass; `auto` counts as fp32, which takes the most.
            on_gpu: whether the device is one.
            document_length: mean [tokens]; None takes documents that fill their rows.
        """
        training, resources = config.training, config.resources
        method, length = method_of(config), training.sequence_length
        added = method.added_passes()
        # of the tokens, not the documents: with lengths that vary as they do in text, about twice the mean
        attended = min(training.sequence_length, 2 * document_length if document_length else training.sequence_length)
        return cls(
            micro_batch=micro_batch,
            sequence_length=training.sequence_length,
            workers=fewest_of(resources.workers),
            zero_stage=resources.zero_stage,
            offload=resources.offload,
            precision="fp32" if precision == "auto" else precision,
            gradient_checkpointing=training.gradient_checkpointing,
            predicted=predicted_fraction(config.objective),
            attended=attended + added.attended,
            on_gpu=on_gpu,
            copies=1 + added.trained + added.per_document / min(length, document_length or length),
            method=method,
            training=training,
        )


def estimate(size: ModelSize, setting: Demand) -> Memory:
    """The memory of one worker at its fullest, in the backward pass.

    Weights, gradients and optimizer are fp32 whatever the precision: casts are made on the way (autocast). ZeRO divides
    the optimizer's state (stage 1), gradients (2) and parameters (3) among the workers (arXiv 1910.02054).
    """
    share = {1: setting.workers, 2: setting.workers, 3: setting.workers}.get(setting.zero_stage, 1)
    added = setting.method.added_memory(size, share)
    whole, part = 4.0 * size.parameters, 4.0 * size.parameters / share
    own_copy = part if setting.zero_stage else 0.0
    trained = min(added.trained, trained_share(setting.training, size))
    parameters = part if setting.zero_stage == 3 else whole
    optimizer = (2 * part + own_copy) * trained
    gradients = (part if setting.zero_stage >= 2 else whole) * trained
    host = 0.0
    if setting.on_gpu and setting.offload != "none":
        host += optimizer + gradients
        optimizer = gradients = 0.0
    if setting.on_gpu and setting.offload == "all":
        host += parameters
        parameters = 0.0
    narrow = 2.0 * (size.layer_parameters + size.head_parameters)
    return Memory(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        buffers=_buffers(size, setting),
        method=added.held,
        casts=added.kept if setting.precision == "fp32" else narrow,
        activations=_activations(size, setting, added),
        loss=_loss(size, setting),
        process=PROCESS_GPU if setting.on_gpu else PROCESS_CPU,
        host=host,
    )


def _buffers(size: ModelSize, setting: Demand) -> float:
    if not setting.zero_stage:
        return 0.0
    # an allocator of main memory reserves addresses only: what is not written takes none
    bucket = BUCKET if setting.on_gpu else min(BUCKET, size.parameters)
    gathered = min(GATHERED, size.parameters) if setting.zero_stage == 3 else 0
    return 4.0 * (bucket + gathered)


def _activations(size: ModelSize, setting: Demand, added: AddedMemory) -> float:
    tokens = setting.micro_batch * setting.sequence_length * setting.copies
    layer = layer_bytes(size, setting.precision, setting.attended, setting.on_gpu)
    layer += (4 if setting.precision == "fp32" else 2) * added.layer_values
    # one layer more than is kept, for the gradients that pass through it
    kept = size.layers * 4.0 * size.hidden + 2 * layer if setting.gradient_checkpointing else (size.layers + 1) * layer
    return tokens * (kept + 12.0 * size.hidden)  # and the embeddings, with their norm and dropout


def layer_bytes(size: ModelSize, precision: str, attended: float, on_gpu: bool) -> float:
    """What autograd keeps of one layer, a token [bytes]."""
    number = 4 if precision == "fp32" else 2
    a, b = _RMS_NORM if size.root_mean_square else _LAYER_NORM
    inner = _INNER_WRITTEN_OUT if size.activation in _WRITTEN_OUT else _INNER[size.gated]
    weight = 0 if on_gpu else _weight_bytes(size, number, attended)
    return size.beside * (a * number + b) * size.hidden + inner * number * size.inner + weight * size.heads * attended


def _weight_bytes(size: ModelSize, number: int, attended: float) -> int:
    """What CPUs keep of an attention weight: itself, and with dropout what is left of it and which are."""
    if size.attention_dropout:
        return 2 * number + 1
    return number if attended <= LONG else 0


def _loss(size: ModelSize, setting: Demand) -> float:
    predicted = ceil(setting.micro_batch * setting.sequence_length * setting.predicted)
    scores = min(SCORES, 4.0 * predicted * size.vocabulary)
    part = 6.0 if setting.precision == "fp16" else 4.0  # which is scaled back in fp32
    return (
        2 * scores + (4.0 + part) * size.head_parameters
    )  # the gradient of the head's matrix, and a piece's part of it


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


def check_fits(config: Config, size: ModelSize, device: Device, document_length: float | None = None) -> None:
    """Refuses a training that its devices cannot hold, before anything is prepared.

    Raises:
        ConfigError: it does not fit.
    """
    chosen = fit(config, size, device, document_length)
    if not chosen.fits:
        raise does_not_fit(chosen, config, size, device, document_length)


def does_not_fit(
    chosen: Fit, config: Config, size: ModelSize, device: Device, document_length: float | None
) -> ConfigError:
    """The refusal: it names the estimate, the memory, and the nearest configuration that fits."""
    parts = sorted(chosen.memory.parts().items(), key=lambda part: -part[1])
    listed = ", ".join(f"{name} {value / GIB:.1f}" for name, value in parts if value >= 0.05 * GIB)
    return ConfigError(
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
