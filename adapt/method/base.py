"""The base class of methods against forgetting, and what its hooks get and return. Plain training adds nothing to it.

A method is a subclass of `Method` that overrides the hooks it needs. docs/develop/design.md shows on which hooks known
methods sit, docs/develop/extending.md how to add one. Hooks of the driver run where torch may not be loaded yet, so
neither this module nor any that `adapt.method.table` names imports it when it is loaded.
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
    """What the stages of a method are made from."""

    config: Config
    """The configuration of this domain's training."""
    start: Start
    """The model that is about to learn it, or that has learnt it."""
    texts: tuple[Stage[Any], ...]
    """The prepared text of the domain, one stage for each source."""
    past: Mapping[str, Stage[Any]]
    """The method's stages so far, by name."""
    general: Stage[Any] | None = None
    """Prepared general text, where some is replayed (`mixture.replay_paths`); known before the first domain."""


@dataclass(frozen=True)
class Added:
    """What a method adds to a training pass: passes through the layers alone, without the language-model head."""

    trained: float = 0.0
    """Forward and backward, as shares of the tokens of the pass. They stand in memory with it."""
    seen: float = 0.0
    """Forward only."""
    per_document: float = 0.0
    """Forward and backward, beside each document [tokens]. They stand in memory with it."""
    attended: float = 0.0
    """What each token attends to beside the tokens of its document."""


@dataclass(frozen=True)
class AddedMemory:
    """What a method adds to the memory of a worker."""

    held: float = 0.0
    """For the whole training, on the device [bytes]."""
    kept: float = 0.0
    """What autograd keeps of parameters that layers compute with in place of the trained ones, in fp32 [bytes]."""
    layer_values: float = 0.0
    """Further numbers that autograd keeps in each layer, for each token."""
    trained: float = 1.0
    """Share of the model's parameters that have gradients and a state of the optimizer."""


class Method:
    """Trains without any measure against forgetting. Every hook does nothing.

    Args:
        options: an instance of `Options`; None where the method has none.
    """

    Options: ClassVar[type | None] = None
    """A frozen dataclass of documented fields with defaults, in the style of `adapt.config`: the section that is called
    like the method. Types with ranges are in `adapt.config`; a field made with `how` does not enter keys."""
    kind: ClassVar[str] = "plain"
    """The method's name in the table of methods."""
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    """The ZeRO stages that it can run with."""
    mode: ClassVar[str | None] = None
    """The `sequence.mode` that it stands for; None leaves the choice to the configuration."""
    is_merged_after: ClassVar[bool] = False
    """Whether a sequence learns each domain from the model to begin with, and then merges all by section `merge`."""
    goes_alone: ClassVar[bool] = False
    """Whether it is also of use with `sequence.mode: separate`, where nothing can be forgotten."""
    by_domain: bool = False
    """Whether the model gets parts for each domain, so that it computes otherwise for text of another domain."""
    depends_on_length: bool = False
    """Whether a step of a longer training computes something else than the same step of a shorter one, as with masks
    that become steeper towards the end, or a window of the last steps. Only such a method is given `Setting.steps`, and
    its trainings never start from the state of a shorter one (`adapt.train.checkpoints.branch`)."""
    past_fraction: float = 0.0
    """Share of the rows of a training that are text of the domains before (dontstop sequence)."""
    general_growth: float = 0.0
    """What is added to the share of general text (`mixture.replay_fraction`) for each domain after the first."""

    def __init__(self, options: Any = None) -> None:
        self.options = options

    # On the driver, before anything runs.

    def what(self) -> dict[str, Any]:
        """What the method contributes to the key of a training."""
        own = type(self).__module__.split(".")[0] != "adapt"
        named = f"{type(self).__module__}:{type(self).__qualname__}" if own else self.kind
        source = {"source": source_digest(type(self))} if own else {}
        length = {"depends_on_length": True} if self.depends_on_length else {}  # see `Train.what`
        return {"kind": named, **source, **self.settings(), **length}

    def settings(self) -> dict[str, Any]:
        """The options that enter the key: all that are not marked `how`. A method can override this."""
        return what(self.options) if is_dataclass(self.options) else {}

    def check(self, config: Config, model: Path) -> None:
        """Refuses what could not work, before anything runs.

        Args:
            config: of the job.
            model: folder of the model to begin with.

        Raises:
            AdaptError: says why.
        """

    def before(self, first: Domain) -> Mapping[str, Stage[Any]]:
        """The stages that are wanted before the first domain is learnt, by the name that `Setting.past` has for them.

        Args:
            first: the domain that is about to be learnt.
        """
        return {}

    def after_domain(self, learnt: Domain) -> Mapping[str, Stage[Any]]:
        """The stages that are wanted after a domain. One of a known name takes the place of that before.

        Args:
            learnt: the domain, with the model that has learnt it.
        """
        return {}

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """What it adds to the work of a training.

        Args:
            is_known: whether there are stages of the method before it.
            passes: micro-batches of a step.
        """
        return Added()

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """What it adds to the memory of a worker.

        Args:
            size: of the model.
            shared_by: ranks among which the optimizer's state is divided.
        """
        return AddedMemory()

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        """The dimensions of the model that is trained, where a method adds width or depth.

        Args:
            size: of the model that the first of the trainings starts with.
            trainings: their numbers in a sequence of domains, from 1, one after another.
        """
        return size

    def notes(self, measured: Mapping[int, Mapping[str, Finished[Any]]]) -> Notes:
        """What its stages came to in a sequence of domains.

        Args:
            measured: its finished stages by name, by how many domains had been learnt.
        """
        return Notes()

    # On every rank of a training, in this order. All ranks call all of them at the same time.

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Changes the model before the engine wraps it: gates, masks, plugins, a frozen teacher.

        Returns:
            The model to be trained: the same, or another in its place.

        Raises:
            ModelError: the method cannot train this model.
        """
        return model

    def begin(self, engine: TrainingEngine) -> None:
        """Sees the engine (`adapt.train.engine.Engine`) with the first weights; a checkpoint is loaded afterwards."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` gave, where the training resumes."""

    def extra_loss(self, model: nn.Module, corrupted: Corrupted, step: int) -> Tensor | None:
        """What is added to the loss of one micro-batch; None for nothing.

        The loop averages it over all micro-batches and ranks, weighed by their numbers of predictions. So a mean over a
        micro-batch's predictions (distillation) becomes the mean over the global batch, however that is cut. Penalties
        that look at weights belong into `before_step`: under ZeRO 3 a rank has no whole weights here.
        """
        return None

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The passes of a step, one by one: the caller runs the backward pass of one before it asks for the next.

        A method that computes both losses in one pass, or looks beyond a micro-batch, overrides this instead of
        `extra_loss`. In a trial of how much memory it takes, a rank calls it alone (see
        `adapt.method.collectives.without_others`).

        Args:
            model: the engine, or in a trial the model itself.
            parts: this rank's micro-batches of the step, in the order of the global batch; all ranks have as many.
            objective: of the training.
            step: number of the optimizer step, from 0.
            predictions: of the global batch.

        Yields:
            For each micro-batch the objective's summed loss, and what it adds to the loss of the step, or None. Of that
            the gradient counts, added up over micro-batches and ranks; its value need not mean anything.
        """
        for part in parts:
            loss, extra = objective.loss(model, part), self.extra_loss(model, part, step)
            yield loss, None if extra is None else extra * (len(part.targets) / predictions)

    def before_step(self, engine: TrainingEngine, step: int) -> None:
        """Comes after all passes of a step and before the optimizer: see `Engine.change_gradients`."""

    def after_step(self, engine: TrainingEngine, step: int) -> None:
        """Comes after the optimizer's step: see `Engine.parts`."""

    def report(self) -> dict[str, float]:
        """Figures since the last call, for the training's log."""
        return {}

    def state(self) -> dict[str, Any]:
        """The state that changes during training, which checkpoints keep by `torch.save`; the same on all ranks.

        What can be made again from the setting does not belong here.
        """
        return {}

    def resize(self, config: Any) -> None:
        """Changes what config.json of the exported model says, where `prepare_model` gave it another size or additions.

        Additions that stay in the state that `merge` gives are entered by `adapt.model.additions.table.with_addition`.
        """

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Turns the trained state into the weights of an ordinary model, for export.

        Args:
            state: whole on the first rank, empty on the others.
        """
        return state

    def cut_short(self, done: int) -> str:
        """Says what the model lacks because its text ended before `Setting.steps`.

        Only called for methods that declare `depends_on_length`.

        Args:
            done: number of steps that the training came to.

        Returns:
            A sentence for the user without its full stop; empty if nothing is missing.
        """
        return ""

    def carry(self, folder: Path) -> None:
        """Writes what the next domain gets from this training beside the weights, as `Setting.carried`.

        Args:
            folder: empty, and there on the first rank alone, which is the only one to call this.
        """


class WeightPart(Protocol):
    """What a rank holds of a trained parameter (`adapt.train.engine.ParameterPart`)."""

    @property
    def name(self) -> str:
        """The parameter's name."""

    @property
    def begin(self) -> int:
        """Its first element in the flattened parameter."""

    @property
    def value(self) -> Tensor:
        """The weights that the optimizer changes: fp32, flat."""

    def of(self, whole: Tensor) -> Tensor:
        """The same part of another tensor of the parameter's shape, flat."""


class TrainingEngine(Protocol):
    """The engine as a method sees it (`adapt.train.engine.Engine`)."""

    @property
    def device(self) -> device:
        """The device of the model."""

    @property
    def model(self) -> nn.Module:
        """The module to call in forward passes."""

    def parts(self) -> Iterator[WeightPart]:
        """What this rank holds of each trained parameter; all of it at ZeRO stage 0."""

    def change_gradients(self, change: Callable[[Any, Tensor], Tensor]) -> None:
        """Replaces the gradients of a step, before they are clipped. All ranks call it, in `Method.before_step`.

        Args:
            change: gets a `WeightPart` and its gradient, flat fp32; returns the gradient to take.
        """

    def full_state(self) -> dict[str, Tensor]:
        """All weights and buffers, whole and on the CPU; empty on ranks other than 0. All ranks call it."""


@dataclass(frozen=True)
class Setting:
    """What a method is told of the training that it is part of."""

    seed: int = 0
    length: int | None = None
    """Number of steps of the training; None for a method that does not declare `Method.depends_on_length`."""
    past: Mapping[str, Path] = field(default_factory=dict)
    """Folders of the method's stages so far, by name."""
    anchor: Path = Path()
    """Folder of the model that the training began with."""
    base: Path = Path()
    """Folder of the model that the first of all domains began with."""
    carried: Path | None = None
    """What `carry` left of the domain before."""
    number: int | None = None
    """Number of the domain, from 1; None where it is not known."""
    domain: str = ""
    """Name of the domain."""
    texts: tuple[Path, ...] = ()
    """Folders of its prepared text; empty where that is streamed."""
    first_general: int | None = None
    """From this number on (`Corrupted.rows`) rows are of replayed general text; None where none is."""
    device: Any = "cpu"
    """The device that the model will be on."""
    zero_stage: int = 0
    world: int = 1
    """Ranks."""
    precision: str = "fp32"
    """Arithmetic of the passes: fp32, bf16 or fp16."""
    load: Callable[[Path], PreTrainedModel] | None = None
    """Loads another model, such as a teacher, as the trained one was loaded: on the CPU, in evaluation mode."""

    @property
    def steps(self) -> int:
        """Number of steps of the training.

        Raises:
            ConfigError: the method does not declare that its steps depend on the length.
        """
        if self.length is None:
            raise ConfigError(
                "method.kind: the method asks for the length of the training, and does not declare that it does",
                "set `depends_on_length = True` in its class (docs/develop/extending.md)",
            )
        return self.length


@dataclass(frozen=True)
class NoteTable:
    """Figures for people."""

    title: str
    columns: list[str]
    rows: dict[str, list[str]]
    """Cells by the row's name."""


@dataclass(frozen=True)
class Notes:
    """What a method has to say of a sequence of domains."""

    tables: list[NoteTable] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
