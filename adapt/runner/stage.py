"""Defines the base class of stages, and their keys. A stage has a configuration, inputs, a run method and a result.

The key of a stage is the hash of everything that determines the stage's result, and of nothing else. Versions of
packages are part of the key only if they affect the result. Most versions do not: all versions of torch, transformers
and numpy compute the same up to rounding, and other packages read and write the same formats in all versions. The
packages in DECIDING have heuristics or algorithms that another version may change. A stage or cleaning block that uses
one of these packages must add `deciding(...)` to its `what`.
"""

import hashlib
import importlib.metadata
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from adapt.config import Config
from adapt.runner.mirror import at_hand
from adapt.runner.record import Record, check_record, read_result
from adapt.support.errors import StageError
from adapt.support.versions import untried
from adapt.terminal.console import log

R = TypeVar("R")
NOTHING: Mapping[str, float] = {}
ONE_CPU: Mapping[str, float] = {"CPU": 1}
_WITHOUT = (str, bool, int, float, Path, Config)
"""Types whose values contain no stages.

These values are not searched for input stages, because large chains have many configurations.
"""


@dataclass(frozen=True)
class Shown:
    """Stages whose files another stage reads only to display their metrics.

    The other stage's result does not depend on these stages, so they do not enter its key.
    """

    stages: "Mapping[str, Stage[Any]]" = field(default_factory=dict)
    """The stages, keyed by name. They are finished before the stage that reads them runs."""


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """Return value of a stage's run, from which the runner writes the record."""

    result: R
    """Result as a dataclass of plain values, which the record stores as metrics."""
    cost: dict[str, Any] = field(default_factory=dict)
    """Cost of the run, such as device time [s] and number of tokens. The runner adds the duration [s]."""
    resources: dict[str, Any] = field(default_factory=dict)
    """Devices and settings that the stage ran with."""


class Stage(ABC, Generic[R]):
    """A unit of work whose result, an `R`, is determined by `what` and by its input stages.

    A kind of stage is a dataclass (`frozen=True, eq=False`) such as `class Train(Stage[Trained])`. Its fields are
    settings and input stages. An input stage may be a field, or be inside of a mapping, a tuple or another dataclass
    in a field. Stages inside `Shown` are not inputs, but are finished before the stage runs.
    """

    kind: ClassVar[str]
    """Name of this kind of stage, and of the folder with all stages of this kind."""
    version: ClassVar[int] = 1
    """Version of the stage's code.

    Developers raise the version by hand whenever the code would return another result for the same configuration.
    """
    model_place: ClassVar[str] = "."
    """Path of the model in the stage's folder, if the stage writes a model."""
    takes: ClassVar[Mapping[str, float] | None] = None
    """Cluster resources that the stage uses, such as ONE_CPU. None for all resources. See `adapt.runner.ensure`."""
    device_time: ClassVar[Literal["none", "own", "inputs"]] = "none"
    """Device-hours that the stage's record contains: none, the stage's own, or the sum over the stage's inputs."""
    name: str
    """Readable name of the stage. The name of the stage's folder contains it, but the key does not depend on it."""

    @abstractmethod
    def what(self) -> Mapping[str, Any]:
        """Returns the stage's configuration as plain JSON values. With the inputs, it determines the result."""

    @abstractmethod
    def run(self, folder: Path, done: "Done") -> Outcome[R]:
        """Runs the stage, and writes all its files to `folder`.

        The folder may contain files of an earlier run that was killed. The result must be equal to the result of a run
        in an empty folder. The runner writes the record afterwards.

        Args:
            folder: folder of the stage.
            done: finished input stages.
        """

    def refuse_early(self) -> None:
        """Checks the settings before any stage of a job runs. The check must be fast and need no cluster.

        Raises:
            AdaptError: the stage would fail.
        """

    def disk(self, folder: Path) -> tuple[int, int]:
        """Estimates how much more the stage will write to its folder [bytes].

        The first number is the size of files that remain after the stage, and the second is the size of temporary
        files.
        """
        return 0, 0

    def tidy(self, folder: Path) -> None:
        """Removes files that are not needed after the record is written.

        The method does not run if the process is killed after writing the record.
        """

    def needs(self) -> Mapping[str, float] | None:
        """Returns the cluster resources that the stage uses. Subclasses override this method if settings decide."""
        return self.takes

    @cached_property
    def inputs(self) -> "Mapping[str, Stage[Any]]":
        """Input stages, keyed by the path of the field that contains them: `training`, `corpora.cs`, `start.training`.

        Raises:
            StageError: two inputs have the same name, which is possible if names contain dots.
        """
        stages: dict[str, Stage[Any]] = {}
        for declared in fields(self):  # type: ignore[arg-type]
            for name, stage in _stages_in(getattr(self, declared.name), declared.name):
                if name in stages:
                    raise StageError(f"{self.kind}: two inputs of this stage are called {name}", "rename one of them")
                stages[name] = stage
        return stages

    @cached_property
    def needed(self) -> "list[Stage[Any]]":
        """Stages that must be finished before this stage runs: its inputs, and those whose metrics it displays."""
        shown = [getattr(self, declared.name) for declared in fields(self)]  # type: ignore[arg-type]
        return [*self.inputs.values(), *(each for of in shown if isinstance(of, Shown) for each in of.stages.values())]

    @cached_property
    def key(self) -> str:
        """Key of the stage (SHA-256); see `stage_key`."""
        for stage in inputs_first([self], lambda stage: "key" in vars(stage)):
            # a loop, because long chains would exceed Python's limit of nested calls
            inputs = {name: needed.key for name, needed in stage.inputs.items()}
            vars(stage)["key"] = stage_key(stage.kind, stage.version, stage.what(), inputs)
        return str(vars(self)["key"])

    @classmethod
    def result_type(cls) -> type[R]:
        """Returns the class of the stage's result."""
        (base,) = (base for base in cls.__orig_bases__ if getattr(base, "__origin__", None) is Stage)  # type: ignore[attr-defined]
        kind: type[R] = base.__args__[0]
        return kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stage) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _stages_in(value: Any, name: str) -> Iterator[tuple[str, Stage[Any]]]:
    if value is None or isinstance(value, (*_WITHOUT, Shown)):
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


def paths_outside(value: Any, root: Path) -> list[Path]:
    """Returns the existing files and folders outside of the storage root that a stage reads.

    The function calls `files_outside` of each value in the stage's fields that has this method, and joins the results.
    """
    found: dict[Path, None] = {}

    def visit(each: Any) -> None:
        if each is None or isinstance(each, (*_WITHOUT, Shown)) or (isinstance(each, Stage) and each is not value):
            return
        if isinstance(each, Mapping):
            each = tuple(each.values())
        if isinstance(each, tuple | list):
            for inner in each:
                visit(inner)
        elif is_dataclass(each) and not isinstance(each, type):
            if callable(paths := getattr(each, "files_outside", None)):
                found.update({path.absolute(): None for path in paths()})
            for declared in fields(each):
                visit(getattr(each, declared.name))

    visit(value)
    return [path for path in found if path.exists() and not path.is_relative_to(root)]


@dataclass(frozen=True)
class Finished(Generic[R]):
    """A finished stage: its record and its result."""

    record: Record
    kind: type[R]
    """Class of the stage's result."""

    @cached_property
    def result(self) -> R:
        """Result of the stage, read from the record.

        Raises:
            StageError: the record's metrics are not a result of this class.
        """
        return read_result(self.kind, self.record)

    @property
    def path(self) -> Path:
        """Folder of the stage. If the storage root is a bucket, missing files are copied from there first.

        Raises:
            StageError, StorageError: the files cannot be copied (see `adapt.runner.mirror.at_hand`).
        """
        return at_hand(self.record.path)

    @classmethod
    def of(cls, stage: Stage[R], record: Record) -> "Finished[R]":
        """Combines a stage with the record of its run.

        Raises:
            StageError: the record lacks a field of the stage's result.
        """
        kind = stage.result_type()
        check_record(kind, record)
        return cls(record, kind)


@dataclass(frozen=True)
class Done:
    """Finished inputs of a stage, keyed by stage: `done[self.training].result.steps`."""

    records: Mapping[str, Record]
    """Records of the inputs, keyed by stage key."""

    def __getitem__(self, stage: Stage[R]) -> Finished[R]:
        return Finished.of(stage, self.records[stage.key])

    def __contains__(self, stage: Stage[Any]) -> bool:
        return stage.key in self.records


def inputs_first(
    stages: Iterable[Stage[Any]],
    skips: Callable[[Stage[Any]], bool],
    below: Callable[[Stage[Any]], Iterable[Stage[Any]]] = lambda stage: stage.inputs.values(),
) -> Iterator[Stage[Any]]:
    """Yields stages and their inputs, inputs first. Yields each stage once if `skips` is true for yielded stages.

    Args:
        stages: stages at which the search begins.
        skips: function that returns whether to leave out a stage, together with the inputs that no other stage needs.
            It is called when the search reaches the stage, after earlier stages were yielded.
        below: function that returns the stages that must be yielded before a stage. By default, its inputs.
    """
    waiting = [(stage, False) for stage in reversed(list(stages))]
    while waiting:
        stage, is_reached = waiting.pop()
        if is_reached:
            yield stage
        elif not skips(stage):
            waiting.append((stage, True))
            waiting += [(each, False) for each in reversed(list(below(stage)))]


def everything(stages: Iterable[Stage[Any]]) -> list[Stage[Any]]:
    """Returns `stages` and all their direct and indirect inputs, each stage once."""
    reached: dict[str, Stage[Any]] = {}
    waiting = list(stages)
    for stage in waiting:
        if stage.key not in reached:
            reached[stage.key] = stage
            waiting += stage.needed  # the loop also visits these added stages
    return list(reached.values())


def canonical(value: Any, path: str = "what") -> str:
    """Returns the canonical JSON of a value. Equal values have the same text.

    1, 1.0 and true are different values. A list and a tuple with the same elements are equal.

    Args:
        value: plain JSON values.
        path: name of the value, for messages.

    Raises:
        StageError: a value has no stable text (a set, an object, NaN, a key that is not a string).
    """
    return json.dumps(_plain(value, path), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise StageError(f"{path} is {value}, which JSON cannot represent", "use a finite number or null")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                raise StageError(f"{path} has the key {key!r}, which is not a string", "use string keys")
        return {key: _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{number}]") for number, item in enumerate(value)]
    raise StageError(f"{path} is a {type(value).__name__}, which JSON cannot represent", "use plain JSON values")


def stage_key(stage: str, version: int, what: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """Returns the SHA-256 (hexadecimal) of a stage's kind, version, configuration and the keys of its inputs."""
    text = canonical({"stage": stage, "version": version, "what": what, "inputs": inputs}, stage)
    return hashlib.sha256(text.encode()).hexdigest()


def flatten(what: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the values of a nested configuration, keyed by dotted field name."""
    flat: dict[str, Any] = {}
    for key, value in what.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Lists the differences of two configurations, such as `training.learning_rate: 0.0005 -> 0.0001`."""
    before, after = flatten(old), flatten(new)
    return [
        f"{name}: {' -> '.join(_short(before, after, name))}"
        for name in sorted(before.keys() | after.keys())
        if (name in before) != (name in after) or canonical(before[name]) != canonical(after[name])
    ]


SHOWN = 40
"""Maximum number of characters that are shown of a value in a list of differences."""


def _short(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Formats the old and the new value of a field. Long values begin shortly before their first difference."""
    old, new = (_text(fields, name) for fields in (before, after))
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    begin = same - 10 if max(len(old), len(new)) > SHOWN and same > SHOWN // 2 else 0
    return _cut(old, begin), _cut(new, begin)


def _text(fields: Mapping[str, Any], name: str) -> str:
    if name not in fields:
        return "(not there)"
    value = fields[name]
    is_digest = isinstance(value, str) and len(value) == 64 and re.fullmatch("[0-9a-f]*", value)
    return f"{value[:8]}…" if is_digest else json.dumps(value)


def _cut(text: str, begin: int) -> str:
    """Cuts a text to SHOWN characters from `begin` on. An ellipsis marks each cut."""
    rest = f"…{text[begin + 1 :]}" if begin else text
    return rest if len(rest) <= SHOWN else f"{rest[: SHOWN - 1]}…"


RECORDED = ("dontstop", "torch", "transformers", "tokenizers", "deepspeed", "ray", "datasets", "pyarrow", "numpy")
"""Packages whose versions every record contains."""
DECIDING = {
    "ftfy": 3,  # heuristics that repair characters; 6.0.2 and 6.1.1 changed them
    "py3langid": 3,  # the package contains its language identification model
    "rensa": 3,  # hash functions that decide which documents are near-duplicates
    "tokenizers": 2,  # follows the format of tokenizer files; patch releases only fix bugs
    "scikit-learn": 2,  # definition of words, search of nearest neighbours, and convergence of regressions
    "faiss-cpu": 2,  # algorithms for centroids, codes and graphs
    "optuna": 2,  # its samplers propose the trials of a search
    "resiliparse": 3,  # rules that find the main text of web pages
    "pypdfium2": 3,  # contains PDFium, which decides on spaces and the order of text
    "pylatexenc": 2,  # tables of the texts that replace LaTeX macros
    "docutils": 2,  # rules of reStructuredText
    "markdown-it-py": 2,  # rules of Markdown
    "lm-eval": 3,  # prompts, metrics and filters of benchmark tasks
    "mteb": 3,  # tasks for embeddings, and how their scores are computed
    "peft": 2,  # chooses positions and initial values of low-rank adapters
}
"""Packages whose releases may compute different results. The number says how many leading parts of a package's version
enter the keys of stages."""


def deciding(*packages: str) -> dict[str, dict[str, str]]:
    """Returns the entry of a stage's `what` with the versions of packages that affect the stage's result.

    The packages are not imported.
    """
    counted = {package: ".".join(package_version(package).split(".")[: DECIDING[package]]) for package in packages}
    return {"packages": counted} if counted else {}


def ran_with() -> dict[str, str]:
    """Returns the installed versions of all packages that may have affected a stage. They go into its record."""
    versions = {package: package_version(package) for package in dict.fromkeys((*RECORDED, *DECIDING))}
    return {package: version for package, version in versions.items() if version}


@cache
def say_untried() -> None:
    """Logs once per process which packages are installed in versions that dontstop was not tested with."""
    for line in untried():
        log(f"{line}; dontstop doctor says what to install")


@cache
def package_version(package: str) -> str:
    """Returns the version of an installed package, or "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""  # an optional package, or dontstop itself in a source tree, may not be installed
