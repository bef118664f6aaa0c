"""Defines the base class of methods that reduce forgetting, and the types that its hooks take and return.

A method is a subclass of `Method` that overrides the hooks it needs. Plain training is `Method` itself, with no hook
overridden. docs/develop/design.md shows which hooks the existing methods use, and docs/develop/extending.md shows how
to add a method. The driver calls some hooks before torch may be loaded. So neither this module nor any module that
`adapt.method.table` names imports torch at module level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from adapt.config import Config, what
from adapt.config.kinds import source_digest
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, device, nn
    from transformers import PreTrainedModel

    from adapt.model.size import ModelSize
    from adapt.model.start import Start
    from adapt.objective.objective import Corrupted, Objective
    from adapt.runner import Finished, Stage


@dataclass(frozen=True)
class Domain:
    """One domain in a sequence of domains. Methods build their stages from this object."""

    config: Config
    """The configuration of this domain's training."""
    start: Start
    """The model. In `Method.before`, it is not trained on the domain yet. In `Method.after_domain`, it is."""
    texts: tuple[Stage[Any], ...]
    """The prepared text of the domain, one stage for each source."""
    past: Mapping[str, Stage[Any]]
    """The stages that the method has added to the sequence so far, keyed by stage name."""
    general: Stage[Any] | None = None
    """Prepared general text that is replayed (`mixture.replay_paths`), or None. It is always None in
    `Method.after_domain`."""


@dataclass(frozen=True)
class Added:
    """Extra work of a method in the layers of the model, per training pass. The language-model head is not counted."""

    trained: float = 0.0
    """Number of extra tokens that the method runs forward and backward in a training pass, divided by the number of
    the pass's own tokens. The activations of the extra tokens add to the memory of the pass."""
    seen: float = 0.0
    """Number of extra tokens with a forward pass only, divided by the number of tokens of the pass."""
    per_document: float = 0.0
    """Number of extra tokens per document with a forward and backward pass. Their activations need memory."""
    attended: float = 0.0
    """Number of extra positions that each token attends to, in addition to the tokens of its document."""


@dataclass(frozen=True)
class AddedMemory:
    """Extra memory of a method on each worker."""

    held: float = 0.0
    """Extra device memory that is used during the whole training [bytes]."""
    kept: float = 0.0
    """Memory of modified copies of parameters [bytes], if layers compute with copies instead of the parameters
    themselves. Autograd stores the copies in fp32."""
    layer_values: float = 0.0
    """Number of extra values that autograd stores per token in each layer."""
    trained: float = 1.0
    """Share of the model's parameters that have gradients and optimizer state."""


class Method:
    """Base class of methods. Its hooks change nothing, so the class itself is plain training.

    Args:
        options: an instance of `Options`; None if the method has no options.
    """

    Options: ClassVar[type | None] = None
    """A frozen dataclass whose fields have defaults and docstrings, like the sections in `adapt.config`. That module
    also has number types with ranges. The dataclass becomes the configuration section with the method's name. A field
    that is declared with `how(default)` is not part of the stages' keys, so stages are not rerun if it changes."""
    kind: ClassVar[str] = "plain"
    """The method's name in `method.kind`."""
    trains_plainly: ClassVar[bool] = False
    """Whether each training run is plain training of a model on a text, so that both have the same key."""
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    """The ZeRO stages that the method can run with."""
    mode: ClassVar[str | None] = None
    """The `sequence.mode` that the method implies; None leaves the choice to the configuration."""
    is_merged_after: ClassVar[bool] = False
    """Whether a sequence trains each domain from the first model and merges all models as configured in `merge`."""
    goes_alone: ClassVar[bool] = False
    """Whether the method is also useful if each domain gets its own model (`sequence.mode: separate`)."""
    trains_head: bool = True
    """Whether the language-model head is trained. If not, `model.head: new` is refused, because the new head would keep
    its random weights."""
    trains_layers: bool = True
    """Whether the weights of the layers are trained. If not, `model.reinitialize_top` is refused, because the new
    layers would keep their random weights."""
    by_domain: bool = False
    """Whether the model has separate parameters for each domain, so that outputs depend on the text's domain."""
    adds_modules: bool = False
    """Whether the exported model has modules in addition to those of its architecture, such as adapters.
    sentence-transformers and other libraries would ignore them."""
    depends_on_length: bool = False
    """Whether a step of a longer training run differs from the same step of a shorter training run. Examples are masks
    that become steeper towards the end, and a window of the last steps. Only such a method may read `Setting.steps`.
    Its training runs never start from the state of a shorter training run (`adapt.train.checkpoints.branch`). If the
    text ends before the planned last step, the result is not that of a shorter training run, so the user is warned."""
    scores_in_blocks: str = ""
    """Advice for the user in the error that a model's head does not end in a linear layer. Methods that compute scores
    in blocks set this advice, because they need a final linear layer. Empty for all other methods."""
    exports_trained: bool = True
    """Whether the exported model has the same outputs as the model in training. If not, for example because the
    exported weights are a mean over steps, measurements during training cannot be used to choose the model to export
    (`training.stop`)."""
    past_fraction: float = 0.0
    """In `dontstop sequence`, the share of the training rows that come from the text of earlier domains."""
    other_models: tuple[str, ...] = ()
    """Models that the method reads in addition to the trained one, such as teachers: ids, folders, or names of stages
    of the same chain. `Setting.teachers` has their folders."""
    needs_equal_width: bool = False
    """Whether `other_models` must be as wide as the trained model, because the method compares hidden states."""

    def __init__(self, options: Any = None) -> None:
        self.options = options

    # The driver calls these hooks before the first stage runs.

    def what(self) -> dict[str, Any]:
        """Returns the method's part of stage `train`'s cache key: kind, options, and source of a user-defined class."""
        if self.trains_plainly:
            return Method().what()
        own = type(self).__module__.split(".")[0] != "adapt"
        named = f"{type(self).__module__}:{type(self).__qualname__}" if own else self.kind
        source = {"source": source_digest(type(self))} if own else {}
        length = {"depends_on_length": True} if self.depends_on_length else {}  # `Train.what` reads this entry
        return {"kind": named, **source, **self.settings(), **length}

    def settings(self) -> dict[str, Any]:
        """Returns the options in the cache key of stage `train`. By default, these are all options not marked `how`."""
        return what(self.options) if is_dataclass(self.options) else {}

    def check(self, config: Config, model: Path) -> None:
        """Checks before anything runs that the method supports the configuration and the model.

        Args:
            config: the job's configuration. `corpus.sources` has the domains of a sequence, and is empty in other jobs.
            model: folder of the first model.

        Raises:
            AdaptError: the method does not support the configuration or the model.
        """

    def at_folders(self, folders: Sequence[Path]) -> Any:
        """Returns the options with the names in `other_models` replaced by folders.

        Args:
            folders: for each name, the folder of a model with the named model's architecture and sizes. If an earlier
                stage trains the named model, the folder has the model before this training.
        """
        return self.options

    def before(self, first: Domain) -> Mapping[str, Stage[Any]]:
        """Returns the stages that run before the first domain is learnt.

        Args:
            first: the first domain, with the model before its training.

        Returns:
            Stages, keyed by the names under which `Setting.past` lists their result folders.
        """
        return {}

    def after_domain(self, learnt: Domain) -> Mapping[str, Stage[Any]]:
        """Returns the stages to run after training on a domain. A stage replaces an earlier stage with the same name.

        Args:
            learnt: the domain, with the model after the training on the domain.

        Returns:
            Stages, keyed by the names under which `Setting.past` lists their result folders.
        """
        return {}

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """Returns the extra work of the method per training pass, for estimates of FLOPs and memory.

        Args:
            is_known: whether the method's stages, such as a measurement of importance, have run before this training.
            passes: number of micro-batches per step. If there are several, some methods compute part of a pass twice.
        """
        return Added()

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Returns the extra memory of the method on each worker.

        Args:
            size: dimensions of the model.
            shared_by: number of ranks that share the optimizer's state.
        """
        return AddedMemory()

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        """Returns the dimensions of the trained model, which differ from `size` if the method adds width or depth.

        Args:
            size: dimensions of the model before the first training run in `trainings`.
            trainings: consecutive numbers of training runs in a sequence of domains. The sequence's first training run
                has number 1.
        """
        return size

    def notes(self, measured: Mapping[int, Mapping[str, Finished[Any]]]) -> Notes:
        """Returns tables and warnings about the method's stages, for the report of a sequence of domains.

        Args:
            measured: the method's finished stages, keyed by number of domains learnt so far, then by stage name.
        """
        return Notes()

    # Every rank of a training run calls the following hooks in this order, and all ranks call a hook at the same time.

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Changes the model before the engine wraps it, for example by gates, masks or plugins.

        Returns:
            The model to train: the same object or a new one.

        Raises:
            ModelError: the method cannot train this model.
        """
        return model

    def begin(self, engine: TrainingEngine) -> None:
        """Runs once after the engine (`adapt.train.engine.Engine`) was created, before a checkpoint is loaded.

        For example, a method can copy the starting weights here.
        """

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores the state that `state` returned, when a training run resumes from a checkpoint."""

    def extra_loss(self, model: nn.Module, corrupted: Corrupted, step: int) -> Tensor | None:
        """Returns a term to add to the loss of one micro-batch, or None.

        The term should be a mean over the micro-batch's predictions. `losses` weights the terms of all micro-batches
        and ranks by their number of predictions, so that the mean over the global batch is added, no matter how the
        batch is split. Penalties on weights belong in `before_step`: under ZeRO 3, no rank has complete weights here.
        """
        return None

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yields the losses of a step's passes. The caller runs each backward pass before it requests the next loss.

        A method overrides this hook instead of `extra_loss` if it computes the objective's loss and its own term in one
        pass, or needs more than one micro-batch. In a trial that measures the memory use, a single rank calls this hook
        without the other ranks (see `adapt.method.collectives.without_others`).

        Args:
            model: the engine, or in a trial the model itself.
            parts: this rank's micro-batches of the step, in the order of the global batch. All ranks have the same
                number of micro-batches.
            objective: the training's objective.
            step: number of the optimizer step, from 0.
            predictions: number of predictions in the global batch.

        Yields:
            For each micro-batch the objective's summed loss, and a term to add to the step's loss, or None. Only the
            gradient of this term is used, summed over micro-batches and ranks. Its value may be arbitrary.
        """
        for part in parts:
            loss, extra = objective.loss(model, part), self.extra_loss(model, part, step)
            yield loss, None if extra is None else extra * (len(part.targets) / predictions)

    def before_step(self, engine: TrainingEngine, step: int) -> None:
        """Runs after all passes of a step and before the optimizer's step, for example to change gradients."""

    def after_step(self, engine: TrainingEngine, step: int) -> None:
        """Runs after the optimizer's step, for example to read the new weights (`TrainingEngine.parts`)."""

    def report(self) -> dict[str, float]:
        """Returns measurements of the steps since the last call, keyed by name, for the training's log."""
        return {}

    def state(self) -> dict[str, Any]:
        """Returns the state that changes during training, for checkpoints (`torch.save`). It is the same on all ranks.

        It should not contain state that the method can rebuild from the setting.
        """
        return {}

    def resize(self, config: Any) -> None:
        """Updates the config.json of the exported model if `prepare_model` has changed its size or added modules.

        If the weights that `merge` returns still have added modules, call `adapt.model.additions.table.with_addition`.
        """

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Converts the trained weights to those of an ordinary model, for export.

        Args:
            state: the trained weights, keyed by name: complete on the first rank, and empty on other ranks.
        """
        return state

    def carry(self, folder: Path) -> None:
        """Writes data for the next domain's training that is not part of the weights.

        In the next domain's training, `Setting.carried` is this folder.

        Args:
            folder: an empty folder. Only the first rank calls this hook.
        """


class WeightPart(Protocol):
    """The elements of a trained parameter that this rank holds (`adapt.train.engine.ParameterPart`)."""

    @property
    def name(self) -> str:
        """Name of the whole parameter."""

    @property
    def begin(self) -> int:
        """Index of the part's first element in the flattened parameter."""

    @property
    def value(self) -> Tensor:
        """The elements that the optimizer changes: fp32, flattened."""

    def of(self, whole: Tensor) -> Tensor:
        """Returns this part's elements of another tensor, flattened. The tensor has the whole parameter's shape."""


class TrainingEngine(Protocol):
    """The attributes of the training engine (`adapt.train.engine.Engine`) that methods may use."""

    @property
    def device(self) -> device:
        """The device of the model."""

    @property
    def model(self) -> nn.Module:
        """The module to call in forward passes."""

    def parts(self) -> Iterator[WeightPart]:
        """Yields this rank's part of each trained parameter. At ZeRO stage 0, a part is the whole parameter."""

    def change_gradients(self, change: Callable[[Any, Tensor], Tensor]) -> None:
        """Replaces the gradients of a step before they are clipped. All ranks call it, in `Method.before_step`.

        Args:
            change: takes a `WeightPart` and its gradient, flat fp32; returns the new gradient.
        """

    def full_state(self) -> dict[str, Tensor]:
        """Returns all complete weights and buffers on the CPU. Empty on ranks other than 0. All ranks call it."""


@dataclass(frozen=True)
class Setting:
    """The properties of a training run that its method can read."""

    seed: int = 0
    length: int | None = None
    """Number of steps of the training run. None if the method does not set `Method.depends_on_length`."""
    past: Mapping[str, Path] = field(default_factory=dict)
    """Result folders of the method's stages so far, keyed by the stage's name."""
    anchor: Path = Path()
    """Folder of the model from which this training run started."""
    base: Path = Path()
    """Folder of the model from which training on the first domain of the sequence started."""
    teachers: tuple[Path, ...] = ()
    """Folders of the models in `Method.other_models`."""
    carried: Path | None = None
    """Folder that `Method.carry` wrote after the previous domain; None if it wrote nothing."""
    number: int | None = None
    """Number of the domain, from 1; None if the number is not known."""
    domain: str = ""
    """Name of the domain."""
    texts: tuple[Path, ...] = ()
    """Folders of the domain's prepared text; empty if the text is streamed."""
    first_general: int | None = None
    """Number of the first row of replayed general text, numbered as in `Corrupted.rows`. None without general text."""
    device: Any = "cpu"
    """The device that the model will be on."""
    zero_stage: int = 0
    world: int = 1
    """Number of ranks of the training run."""
    precision: str = "fp32"
    """Number format of the passes: fp32, bf16 or fp16."""
    load: Callable[[Path], PreTrainedModel] | None = None
    """Function that loads another model, such as a teacher, with the trained model's settings. It returns the model on
    the CPU, in evaluation mode."""

    @property
    def steps(self) -> int:
        """Number of steps of the training.

        Raises:
            ConfigError: the method does not set `depends_on_length`.
        """
        if self.length is None:
            raise ConfigError(
                "method.kind: the method reads the number of training steps, but its class does not declare"
                " depends_on_length",
                "set `depends_on_length = True` in its class (docs/develop/extending.md)",
            )
        return self.length


@dataclass(frozen=True)
class NoteTable:
    """A table that a method adds to the report of a sequence of domains."""

    title: str
    columns: list[str]
    rows: dict[str, list[str]]
    """Cells of each row, keyed by the row's name."""


@dataclass(frozen=True)
class Notes:
    """Tables and warnings that a method adds to the report of a sequence of domains."""

    tables: list[NoteTable] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
