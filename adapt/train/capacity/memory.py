"""Estimates a worker's memory, part by part, and the number of sequences that fit.

The module loads no heavy library.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from math import ceil
from pathlib import Path

from adapt.config import Config, TrainingConfig, Workers, fewest_of, most_of
from adapt.method.base import AddedMemory, Method
from adapt.method.table import method_of
from adapt.model.size import ModelSize
from adapt.model.trainable import trained_share
from adapt.objective.table import predicted_fraction, with_generator
from adapt.support.errors import ConfigError
from adapt.train.capacity.device import Device
from adapt.train.capacity.flops import added_work
from adapt.train.schedule import common_batch, micro_batch

GIB = 2**30
BUCKET = 50_000_000
"""Number of gradient elements that ZeRO stages 1 to 3 sum over ranks in one call.

Memory for one fp32 bucket of this size is reserved. DeepSpeed's default is ten times as large, which takes 2 GB per
device.
"""
GATHERED = 1_000_000_000
"""DeepSpeed's stage3_max_live_parameters: maximum number of elements that ZeRO 3 keeps gathered."""
SCORES = 256 * 2**20
"""Maximum size of the logits (vocabulary scores) in memory at once [bytes]; see adapt.model.linear_losses."""
PROCESS_CPU = 1.0 * GIB
"""Memory of a worker on CPUs for Python and libraries, and freed memory that the allocator keeps [bytes]."""
PROCESS_GPU = 0.8 * GIB
"""Memory of the CUDA context, its kernels and the workspaces of libraries [bytes]."""

# Autograd stores (a s + b) bytes per token, layer and hidden unit, and c s bytes per token, layer and inner unit.
# s is the size of a number in the pass's precision. torch.autograd.graph.saved_tensors_hooks counted the bytes for
# BERT, RoBERTa, DistilBERT, ModernBERT, GPT-2, GPT-NeoX, Llama and Qwen3.
# tests/train/capacity/test_memory.py repeats this count.
_LAYER_NORM = (6, 12)
_RMS_NORM = (3, 28)  # RMSNorm runs several elementary operations in fp32
_INNER = {False: 2, True: 4}  # keyed by whether the feed-forward layer is gated
_INNER_WRITTEN_OUT = 5
_WRITTEN_OUT = {"gelu_new", "gelu_fast", "gelu_python", "gelu_accurate", "quick_gelu"}
"""Activations that `transformers` composes of elementary operations, each of which stores its input."""
_DISENTANGLED = "deberta", "deberta-v2"
"""Model types whose attention stores two more matrices: scores between tokens and relative positions."""
_RELATIVE = 512
"""Number of relative positions of published DeBERTa models."""
LONG = 1024
"""Document length up to which CPUs store attention weights [tokens].

With dropout, CPUs store attention weights at any length (see adapt.model.packing.attention).
"""


@dataclass(frozen=True)
class Memory:
    """Peak memory of one worker, part by part [bytes]."""

    parameters: float
    gradients: float
    optimizer: float
    """AdamW's two moments, and DeepSpeed's fp32 copy of the parameters at ZeRO 1 to 3."""
    buffers: float
    """DeepSpeed's buckets and gathered parameters."""
    method: float
    """Tensors that the method holds during the whole training run."""
    casts: float
    """Copies of the parameters that autocast or the method creates and that autograd keeps for the backward pass."""
    activations: float
    loss: float
    """Logits of one piece of the batch, their gradients, and the gradient of the language-model head."""
    process: float
    host: float = 0.0
    """State that `offload` moves to the machine's memory. The total does not contain this state."""

    @property
    def total(self) -> float:
        """Sum of all parts on the device [bytes]."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """Returns the parts of the memory on the device [bytes], keyed by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "host"}


@dataclass(frozen=True)
class Demand:
    """Settings that determine a worker's memory, in addition to the model's dimensions."""

    micro_batch: int
    sequence_length: int
    workers: int
    zero_stage: int
    offload: str
    precision: str
    """Precision of the passes: fp32, bf16 or fp16."""
    gradient_checkpointing: bool
    predicted: float
    """Share of the tokens that are predicted."""
    attended: float
    """Mean number of tokens that a token attends to.

    The number is at most the sequence length plus the number of tokens that the method adds.
    """
    on_gpu: bool
    copies: float = 1.0
    """Number of copies of each row in a pass. It is above 1 if the method compares several views of a row."""
    method: Method = field(default_factory=Method)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Training settings, including the names of the frozen parameters."""

    @classmethod
    def of(
        cls, config: Config, micro_batch: int, precision: str, on_gpu: bool, document_length: float | None = None
    ) -> "Demand":
        """Reads the settings from a configuration.

        If the number of workers is a range, these are the settings for the minimum number, because each worker then has
        the largest part of ZeRO's state.

        Args:
            config: configuration of the job.
            micro_batch: number of sequences per pass.
            precision: precision of the pass. `auto` counts as fp32, which needs the most memory.
            on_gpu: whether the device is a GPU.
            document_length: mean length of documents [tokens]. None assumes that each document fills its row.
        """
        training, resources = config.training, config.resources
        method, length = method_of(config), training.sequence_length
        added = added_work(config)
        # Averaged over tokens, the document length is about twice its average over documents, because lengths vary.
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
    """Estimates the peak memory of one worker, which it reaches in the backward pass.

    Weights, gradients and optimizer are fp32 at any precision, because autocast converts weights during the pass. ZeRO
    divides the optimizer's state (stage 1), gradients (2) and parameters (3) among the workers (arXiv 1910.02054).
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
    # on CPUs, memory pages that are never written take no memory
    bucket = BUCKET if setting.on_gpu else min(BUCKET, size.parameters)
    gathered = min(GATHERED, size.parameters) if setting.zero_stage == 3 else 0
    return 4.0 * (bucket + gathered)


def _activations(size: ModelSize, setting: Demand, added: AddedMemory) -> float:
    tokens = setting.micro_batch * setting.sequence_length * setting.copies
    layer = layer_bytes(size, setting.precision, setting.attended, setting.on_gpu)
    layer += (4 if setting.precision == "fp32" else 2) * added.layer_values
    # One layer is added for the gradients of a layer in the backward pass.
    kept = size.layers * 4.0 * size.hidden + 2 * layer if setting.gradient_checkpointing else (size.layers + 1) * layer
    return tokens * (kept + 12.0 * size.hidden)  # 12 bytes per unit for the embeddings, their norm and dropout


def layer_bytes(size: ModelSize, precision: str, attended: float, on_gpu: bool) -> float:
    """Returns the memory that autograd uses per layer and token [bytes]."""
    number = 4 if precision == "fp32" else 2
    a, b = _RMS_NORM if size.root_mean_square else _LAYER_NORM
    inner = _INNER_WRITTEN_OUT if size.activation in _WRITTEN_OUT else _INNER[size.gated]
    weight = 0 if on_gpu and size.kind not in _DISENTANGLED else _weight_bytes(size, number, attended)
    relative = 0.0
    if size.kind in _DISENTANGLED:
        relative = 2 * _RELATIVE * number * (1.25 * size.heads + size.hidden / attended)
    return (
        relative
        + size.beside * (a * number + b) * size.hidden
        + inner * number * size.inner
        + weight * size.heads * attended
    )


def _weight_bytes(size: ModelSize, number: int, attended: float) -> int:
    """Returns the memory per attention weight on CPUs [bytes].

    With dropout, autograd stores the weight, the weight after dropout, and the mask. Without dropout, it stores the
    weight, but only for short documents.
    """
    if size.attention_dropout:
        return 2 * number + 1
    return number if attended <= LONG else 0


def _loss(size: ModelSize, setting: Demand) -> float:
    predicted = ceil(setting.micro_batch * setting.sequence_length * setting.predicted)
    scores = min(SCORES, 4.0 * predicted * size.vocabulary)
    part = 6.0 if setting.precision == "fp16" else 4.0  # fp16 gradients are also divided by the loss scale in fp32
    return (
        2 * scores + (4.0 + part) * size.head_parameters
    )  # the gradient of the head's matrix, and one piece's contribution to it


USED = 0.8
"""Share of the memory that an automatic micro-batch may fill. The estimate is inexact, and allocators waste memory."""
CPU_TOKENS, GPU_TOKENS = 8_192, 65_536
"""Maximum number of tokens per pass with an automatic micro-batch, on CPUs and on GPUs.

With this many tokens, devices multiply matrices at their full rate, so that more tokens would only need more memory.
"""


@dataclass(frozen=True)
class Fit:
    """A micro-batch and the memory that it needs."""

    micro_batch: int
    accumulation: int
    memory: Memory
    available: int
    """Memory of a worker's device [bytes]."""

    @property
    def fits(self) -> bool:
        """Whether the device has enough memory according to the estimate."""
        return self.memory.total <= self.available


def fit(config: Config, size: ModelSize, device: Device, document_length: float | None = None) -> Fit:
    """Returns the micro-batch and the memory that it needs according to the estimate.

    A configured micro-batch is not changed. `auto` gives the largest micro-batch that leaves 20% of the memory free, or
    1 if no micro-batch does.

    Args:
        config: configuration of the job.
        size: dimensions of the job's model.
        device: device of a worker.
        document_length: mean length of the documents of the corpus [tokens]. None if not yet known.

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
    """Returns the micro-batches that `auto` chooses from, in the order in which they are tried.

    These are the divisors of a worker's share of the batch, largest first, up to a limit of tokens per pass. A method
    that compares rows needs more work in several passes than in one, so the whole share is tried first even if it
    exceeds the limit.
    """
    share, _ = micro_batch(replace(config.training, micro_batch="auto"), config.resources.workers)
    most = max(1, (GPU_TOKENS if on_gpu else CPU_TOKENS) // config.training.sequence_length)
    in_one_pass = [share] if share > most and method_of(config).added_passes().trained else []
    return in_one_pass + [number for number in range(min(share, most), 0, -1) if share % number == 0]


def size_of_training(config: Config, size: ModelSize, number: int, generator: Path | None = None) -> ModelSize:
    """Returns the dimensions of a training run's model, including what the method and the objective add to it.

    Args:
        config: configuration of the job.
        size: dimensions of the model that the first domain starts from.
        number: number of the domain in its sequence, counted from 1.
        generator: folder of the generator of replaced-token detection (`Pretrained.generator`).
    """
    return with_generator(config, method_of(config).trained_size(size, range(1, number + 1)), generator)


def check_fits(config: Config, size: ModelSize, device: Device, document_length: float | None = None) -> None:
    """Refuses a training run that needs more memory than its devices have, before any data is prepared.

    Raises:
        ConfigError: the training run does not fit.
    """
    chosen = fit(config, size, device, document_length)
    if not chosen.fits:
        raise does_not_fit(chosen, config, size, device, document_length)


def does_not_fit(
    chosen: Fit, config: Config, size: ModelSize, device: Device, document_length: float | None
) -> ConfigError:
    """Creates the error that names the estimate, the device's memory, and the most similar configuration that fits."""
    parts = sorted(chosen.memory.parts().items(), key=lambda part: -part[1])
    listed = ", ".join(f"{name} {value / GIB:.1f}" for name, value in parts if value >= 0.05 * GIB)
    return ConfigError(
        f"the training does not fit: with {chosen.micro_batch} sequences per pass, a worker needs about "
        f"{chosen.memory.total / GIB:.1f} GiB ({listed}), and its device has {chosen.available / GIB:.1f} GiB",
        _nearest(config, size, device, document_length),
    )


def _nearest(config: Config, size: ModelSize, device: Device, document_length: float | None) -> str:
    for changes in _changes(config, device):
        changed = _with(config, changes)
        shared_by = device.shared_by
        if not device.on_gpu and shared_by > 1:  # with more workers on a machine, each worker has less memory
            shared_by = shared_by * most_of(changed.resources.workers) // most_of(config.resources.workers)
        tried = fit(changed, size, replace(device, shared_by=shared_by), document_length)
        if tried.fits:
            if config.training.micro_batch != "auto" and tried.micro_batch < config.training.micro_batch:
                changes = {"training.micro_batch": tried.micro_batch, **changes}
            return "this fits: " + " ".join(f"--{name} {_word(value)}" for name, value in changes.items())
    return (
        "choose a smaller model or devices with more memory; if the devices have more memory than this message says, "
        "set resources.device_memory_gib"
    )


def _changes(config: Config, device: Device) -> Iterator[dict[str, object]]:
    """Yields changes of the configuration that save memory, least harmful first.

    Most of the yielded dicts include the changes of earlier dicts.
    """
    changes: dict[str, object] = {}
    yield dict(changes)  # the first dict is empty: `_with` then only makes the micro-batch automatic
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
    """Returns the configured number of workers, then larger numbers that divide the global batch."""
    batch, configured = common_batch(config.training), config.resources.workers
    larger = [number for number in range(fewest_of(configured) + 1, batch + 1) if batch % number == 0]
    if isinstance(configured, int):
        return [configured, *larger]
    return [configured, *((number, max(number, configured[1])) for number in larger)]


def _with(config: Config, changes: dict[str, object]) -> Config:
    """Returns the configuration with an automatic micro-batch and with changed fields, keyed by dotted name."""
    for name, value in {"training.micro_batch": "auto", **changes}.items():
        section, field = name.split(".")
        config = replace(config, **{section: replace(getattr(config, section), **{field: value})})
    return config


def _word(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"  # removes spaces, because a shell would split the text at spaces
    return str(value).lower() if isinstance(value, bool) else str(value)
