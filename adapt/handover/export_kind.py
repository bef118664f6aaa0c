"""Base class of the kinds that `export.kinds` names: libraries and formats for which an exported model is prepared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.config import Config
from adapt.model.locate import CONFIG, read_json
from adapt.model.sentence_vectors import SentenceVectors

if TYPE_CHECKING:
    from adapt.handover.task_kinds import LabelledText


@dataclass(frozen=True)
class ExportedModel:
    """An exported model, to which the kinds add their files."""

    folder: Path
    """Folder in the format of transformers. It also has the files of sentence-transformers if `vectors` is set."""
    config: Config
    vectors: SentenceVectors | None = None
    """How the model makes sentence vectors. None if the folder is not for sentence vectors."""
    labelled: LabelledText | None = None
    """Train split of the user's task. None if no kind needs it, or no task is configured."""

    @property
    def is_decoder(self) -> bool:
        """Whether the model predicts the next token."""
        return self.config.objective.kind == "causal"


@dataclass(frozen=True)
class HandedOver:
    """The files that a kind has written."""

    kind: str
    files: list[str]
    """Files that the kind uses, relative to the folder of the model."""
    difference: float | None = None
    """Largest absolute difference from the model that transformers loads: of outputs for `onnx`, of weights for `gguf`.
    None if the kind uses the same weights, so that there is nothing to compare."""
    note: str = ""
    """What a user must know, as a sentence. Empty if there is nothing."""


class ExportKind(ABC):
    """A library or format for which an exported model is prepared."""

    Options: ClassVar[type[Any] | None] = None
    """Dataclass of the kind's options, with a default for each field. None if there are no options."""
    packages: ClassVar[Sequence[str]] = ()
    """Modules that must be importable to write the files."""
    extra: ClassVar[str] = ""
    """Extra of dontstop that installs these packages. Empty if dontstop always has them."""
    needs_vectors: ClassVar[bool] = False
    """Whether the folder must have the files of sentence-transformers. Without another setting, the pooling is mean."""

    learns: ClassVar[bool] = False
    """Whether the kind uses the train split of the user's task, if one is configured."""

    def __init__(self, options: Any = None) -> None:
        self.options = options

    def refuse(self, config: Config, model: Path) -> None:  # noqa: B027  # most kinds accept all models
        """Refuses a model that cannot have this kind, before anything runs. The default accepts all models.

        Args:
            config: configuration of the job.
            model: folder of the initial model. The exported model has the same architecture.

        Raises:
            ConfigError: the model cannot be exported for this kind.
        """

    @abstractmethod
    def write(self, exported: ExportedModel) -> HandedOver:
        """Writes the files of this kind, and checks that they match the model.

        Weights that are already in the folder are used or linked, and not copied.

        Raises:
            ModelError: the files do not have the outputs of the model, or the model cannot be exported.
        """

    @abstractmethod
    def example(self, exported: ExportedModel) -> str:
        """Returns Markdown for the model card: how to load the model. Empty if the card shows this anyway."""


@dataclass(frozen=True)
class ModelKind:
    """What config.json says about a model."""

    model_type: str
    architectures: Sequence[str]
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> ModelKind:
        """Reads a model's config.json."""
        values = read_json(folder / CONFIG)
        return cls(str(values.get("model_type", "")), [str(name) for name in values.get("architectures") or []], values)
