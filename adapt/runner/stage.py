"""A stage as a value: what determines its result, what it reads, how it runs, and which stages it leads to."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from adapt.config import Config
from adapt.runner.key import stage_key
from adapt.runner.record import Record, check_record, read_result
from adapt.support.errors import StageError

R = TypeVar("R")
NOTHING: Mapping[str, float] = {}
ONE_CPU: Mapping[str, float] = {"CPU": 1}
_WITHOUT = (str, bool, int, float, Path, Config)
"""What holds no stages, and so is not looked through: a large chain has thousands of configurations."""


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """What a stage hands back for its record."""

    result: R
    """A dataclass of plain values, which the record keeps as its metrics."""
    cost: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)
    """The devices and settings that the stage ran on."""


class Stage(ABC, Generic[R]):
    """A unit of work whose result, an `R`, is determined by `what` and by the stages that it reads.

    A kind of stage is a dataclass (`frozen=True, eq=False`) with `class Train(Stage[Trained])`, whose fields are its
    settings and the stages it reads, wherever these stand in them: alone, in mappings, in tuples, in other dataclasses.
    """

    kind: ClassVar[str]
    """The name of this kind of stage; the folder that holds all stages of the kind has the same name."""
    version: ClassVar[int] = 1
    """Raised by hand whenever the code of this kind begins to make other results from the same ingredients."""
    model_place: ClassVar[str] = "."
    """Where in its folder the model lies, if it makes one."""
    takes: ClassVar[Mapping[str, float] | None] = None
    """What it takes of the cluster while it runs, such as ONE_CPU; None for all. See `adapt.runner.parallel`."""
    name: str
    """A name for people. It is part of the folder's name, and does not enter the key."""

    @abstractmethod
    def what(self) -> Mapping[str, Any]:
        """What determines the result beside the stages it reads, as plain JSON values."""

    @abstractmethod
    def run(self, folder: Path, done: "Done") -> Outcome[R]:
        """Does the work.

        Everything it makes goes into `folder`, which may hold leftovers of a run that died; it must end in the same
        state as a first run. The record is committed by the runner, afterwards.

        Args:
            folder: the stage's own.
            done: the finished stages that it reads.
        """

    def refuse_early(self) -> None:
        """Refuses what is known to fail, before any stage of a job runs. Quick, and without a cluster.

        Raises:
            AdaptError: says why.
        """

    def disk(self, folder: Path) -> tuple[int, int]:
        """About how much more the stage will write into its folder [bytes]: what stays, and what goes on its way."""
        return 0, 0

    def tidy(self, folder: Path) -> None:
        """Removes what a finished stage's folder need not hold, once its record is committed; a kill may prevent it."""

    def needs(self) -> Mapping[str, float] | None:
        """What it takes of the cluster while it runs: `takes`, unless that depends on its settings."""
        return self.takes

    @cached_property
    def inputs(self) -> "Mapping[str, Stage[Any]]":
        """The stages that it reads, named by where they stand: `training`, `corpora.cs`, `start.training`.

        Raises:
            StageError: two have one name, as names with dots may make them.
        """
        stages: dict[str, Stage[Any]] = {}
        for declared in fields(self):  # type: ignore[arg-type]
            for name, stage in _stages_in(getattr(self, declared.name), declared.name):
                if name in stages:
                    raise StageError(f"{self.kind}: two of its inputs are called {name}", "give one another name")
                stages[name] = stage
        return stages

    @cached_property
    def key(self) -> str:
        """The stage's identity; see `adapt.runner.key`."""
        inputs = {name: stage.key for name, stage in self.inputs.items()}
        return stage_key(self.kind, self.version, self.what(), inputs)

    @classmethod
    def result_type(cls) -> type[R]:
        """The class of the stage's result."""
        (base,) = (base for base in cls.__orig_bases__ if getattr(base, "__origin__", None) is Stage)  # type: ignore[attr-defined]
        kind: type[R] = base.__args__[0]
        return kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stage) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _stages_in(value: Any, name: str) -> Iterator[tuple[str, Stage[Any]]]:
    if value is None or isinstance(value, _WITHOUT):
        return
    if isinstance(value, Stage):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _stages_in(inner, f"{name}.{key}")
    elif isinstance(value, tuple | list):
        for number, inner in enumerate(value):
            yield from _stages_in(inner, f"{name}.{number}")
    elif is_dataclass(value) and not isinstance(value, type):
        for declared in fields(value):
            yield from _stages_in(getattr(value, declared.name), f"{name}.{declared.name}")


@dataclass(frozen=True)
class Finished(Generic[R]):
    """A stage that has run: its record, and its result as it was handed back."""

    record: Record
    kind: type[R]
    """The class of the result."""

    @cached_property
    def result(self) -> R:
        """The result, read back from the record.

        Raises:
            StageError: the record's metrics are not those of such a result.
        """
        return read_result(self.kind, self.record)

    @property
    def path(self) -> Path:
        """The stage's folder."""
        return self.record.path

    @classmethod
    def of(cls, stage: Stage[R], record: Record) -> "Finished[R]":
        """A stage and the record of its run.

        Raises:
            StageError: the record lacks a field of such a stage's result.
        """
        kind = stage.result_type()
        check_record(kind, record)
        return cls(record, kind)


@dataclass(frozen=True)
class Done:
    """The finished stages that a stage reads: `done[self.training].result.steps`."""

    records: Mapping[str, Record]
    """Records by the keys of their stages."""

    def __getitem__(self, stage: Stage[R]) -> Finished[R]:
        return Finished.of(stage, self.records[stage.key])

    def __contains__(self, stage: Stage[Any]) -> bool:
        return stage.key in self.records


def everything(stages: Iterable[Stage[Any]]) -> list[Stage[Any]]:
    """Some stages and all stages that they read, directly or not, each once."""
    reached: dict[str, Stage[Any]] = {}
    waiting = list(stages)
    for stage in waiting:
        if stage.key not in reached:
            reached[stage.key] = stage
            waiting += stage.inputs.values()  # the loop goes on to these
    return list(reached.values())
