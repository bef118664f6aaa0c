"""Chooses the length of a first training run from the properties of a model and of the text."""

from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import Any

from adapt.cli.inspect_files import TaskProperties
from adapt.model.architecture import max_sequence_length
from adapt.model.demo_checkpoint import NAME as DEMO
from adapt.model.demo_checkpoint import demo_folder, is_complete
from adapt.model.locate import CONFIG, locate, read_json

_BYTES_PER_TOKEN = 4
_LENGTH, _SHORTEST = 512, 128
"""Usual number of tokens per sequence, and the minimum number, which is used if the corpus is small."""
_CPU_WORK = 6 * 4.4e6 * 1e6
"""Maximum number of floating-point operations of a first training run on CPUs. This is enough for training the demo
model on a million tokens, which takes minutes."""
SMALL_MODEL = 20e6
"""Number of parameters below which a model gets a higher learning rate."""
MEDIUM_MODEL = 50e6
"""Number of parameters below which a model gets a higher learning rate of fine-tuning on few labels."""
_FEWEST_STEPS, _WANTED_STEPS, _MOST_STEPS = 20, 200, 12_500
_MOST_EPOCHS, _TAPT_EPOCHS = 10, 100
TAPT_EXAMPLES = 256
"""Usual number of examples per optimizer step when training on the text of a task."""


@dataclass(frozen=True)
class ModelProperties:
    """Properties of a model that determine the drafted configuration."""

    name: str
    longest: int | None
    """Maximum sequence length [tokens], or None if the model has no limit."""
    parameters: float
    """Approximate number of parameters of the model."""
    is_causal: bool
    folder: Path | None = None
    """Folder of the model's tokenizer and card. None if the demo model was not downloaded yet."""

    @classmethod
    def of(cls, name: str) -> "ModelProperties":
        """Reads a model's config.json. The weights of a Hugging Face model are not downloaded.

        Raises:
            ModelError: the model does not exist.
        """
        if name == DEMO:
            folder = demo_folder()
            return cls(name, 512, 4.4e6, False, folder if is_complete(folder) else None)
        folder = locate(name, weights=False)
        config = read_json(folder / CONFIG)
        architecture = str((config.get("architectures") or [""])[0])
        return cls(
            name,
            max_sequence_length(folder),
            _parameters(config),
            architecture.endswith(("ForCausalLM", "LMHeadModel")) and "WithLMHead" not in architecture,
            folder,
        )


def _parameters(config: dict[str, Any]) -> float:
    """Estimates the number of parameters of a transformer from the dimensions in its config.json."""

    def first(*names: str) -> int:
        return next((config[name] for name in names if isinstance(config.get(name), int)), 0)

    hidden = first("hidden_size", "n_embd", "dim", "d_model") or 768
    layers = first("num_hidden_layers", "n_layer", "n_layers", "num_layers") or 12
    return 12.0 * layers * hidden**2 + first("vocab_size") * hidden


@dataclass(frozen=True)
class DraftLength:
    """Length of a training run, and size of its batches."""

    sequence: int
    """Number of tokens per sequence."""
    batch: int
    """Number of sequences per step."""
    epochs: int
    steps_per_epoch: int
    max_steps: int | None
    """Number of steps after which training stops, even if epochs remain. None runs all epochs."""

    @classmethod
    def of(cls, text_bytes: int, model: ModelProperties, on_gpu: bool) -> "DraftLength":
        """Chooses the training length: several passes over the text, but at most a few minutes on CPUs."""
        tokens = text_bytes / _BYTES_PER_TOKEN
        sequence = min(_LENGTH, model.longest or _LENGTH)
        while sequence > _SHORTEST and tokens / sequence < _WANTED_STEPS:
            sequence //= 2
        rows = max(tokens / sequence, 1)
        batch = 2 ** round(min(max(log2(rows / 20), 2), 8 if on_gpu else 4))
        per_epoch = ceil(rows / batch)
        epochs = min(ceil(_WANTED_STEPS / per_epoch), _MOST_EPOCHS)
        return cls(sequence, batch, epochs, per_epoch, _bound(epochs * per_epoch, batch * sequence, model, on_gpu))

    @classmethod
    def of_task(cls, task: TaskProperties, model: ModelProperties, on_gpu: bool) -> "DraftLength":
        """Chooses the length of a training run on the text of a task. `batch` is then a number of examples."""
        sequence = cls.of(task.text_bytes, model, on_gpu).sequence
        per_epoch = ceil(task.documents / tapt_examples(task))
        step_tokens = task.text_bytes / _BYTES_PER_TOKEN / per_epoch
        bound = _bound(_TAPT_EPOCHS * per_epoch, step_tokens, model, on_gpu)
        return cls(sequence, 0, _TAPT_EPOCHS, per_epoch, bound)


def _bound(steps: int, step_tokens: float, model: ModelProperties, on_gpu: bool) -> int | None:
    """Returns the maximum number of steps for a first run, or None if `steps` does not exceed this maximum."""
    affordable = _MOST_STEPS if on_gpu else round(_CPU_WORK / (6 * model.parameters * step_tokens))
    most = max(_FEWEST_STEPS, affordable if affordable < 100 else round(affordable, -1))
    return most if steps > most else None


def tapt_examples(task: TaskProperties) -> int:
    """Returns the number of examples per step: the usual number, or a tenth of the examples of a small task."""
    return max(min(TAPT_EXAMPLES, task.documents // 10), 1)
