"""Finds the configured tasks of lm-evaluation-harness, and checks them before anything runs.

Task files of the user are read as data, by a loader that runs no code: an entry `!function FILE.NAME` becomes a
`NamedFunction`, and the task is refused unless `harness.functions` names it. The harness gets the content of the file,
never the file. Tasks of the harness itself are code of an installed package, and are only looked up here.
"""

import glob
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from adapt.config import HarnessConfig
from adapt.model.locate import OFFLINE, Pretrained
from adapt.ray.runtime import hide_unreserved_gpus
from adapt.runner.digest import Digests
from adapt.runner.stage import deciding
from adapt.support.errors import ConfigError, DataError, nearest
from adapt.support.paths import user_path

PACKAGES = ("lm_eval", "accelerate")
BUILDERS = ("json", "csv", "parquet", "arrow", "text")
"""Formats that local data of a task may have. Other formats, such as `pandas`, read pickles, which could run code."""
REFUSED = {
    "class": "this entry names a Python class",
    "unsafe_code": "the task runs the code that a model writes",
    "custom_dataset": "the task's data come from a Python function",
    "use_prompt": "the task's prompt comes from another package or file",
}
"""Entries of a task file that are refused, with the reason. `custom_dataset` may be a function of harness.functions."""
OFFLINE_DATASETS = (*OFFLINE, "HF_DATASETS_OFFLINE")
FEWSHOT_SEED = 1234
"""Seed that draws the solved examples in prompts, as in lm-evaluation-harness."""


@dataclass(frozen=True)
class NamedFunction:
    """A function that a task file names: the Python file, which is next to the task file, and the function's name."""

    file: Path
    name: str


@dataclass(frozen=True)
class OwnTask:
    """A task file of the user, with the content of the files that it includes."""

    file: Path
    content: Mapping[str, Any]
    """Content for lm-evaluation-harness, with absolute paths of data and a `NamedFunction` for each function."""
    data: tuple[Path, ...]
    """The local data files, and the Python files of functions."""


@dataclass(frozen=True)
class HarnessTasks:
    """The configured tasks. Names of the harness's own tasks, groups and tags are resolved when the tasks run."""

    config: HarnessConfig
    own: Mapping[str, OwnTask]
    """The user's tasks that are measured, keyed by name."""
    parts: Mapping[str, tuple[str, ...]]
    """Names of the user's tasks, keyed by the configured name of a task, group or tag. Configured names that are not
    keys belong to tasks of the harness."""
    digests: Mapping[str, str]
    """Digest of the content and data of each of the user's tasks."""

    def what(self) -> dict[str, Any]:
        """Returns the settings and digests that determine the scores, as a part of a stage's key."""
        config = self.config
        return {
            "tasks": list(config.tasks),
            "own": dict(self.digests),
            "num_fewshot": config.num_fewshot,
            "fewshot_seed": FEWSHOT_SEED,
            "limit": config.limit,
            **deciding("lm-eval"),
        }

    def check_unchanged(self) -> None:
        """Raises DataError if a file of the user's tasks has changed since it was listed."""
        for name, task in self.own.items():
            if _digest(task, Digests()) != self.digests[name]:
                raise DataError(
                    f"files of the task {name} have changed while the task was measured", "run the job again"
                )


def harness_tasks(config: HarnessConfig, digests: Digests) -> HarnessTasks:
    """Finds and checks the configured tasks.

    Raises:
        ConfigError: the package is missing, a name is unknown or occurs twice, or a task is not allowed to run or
            cannot run.
        DataError: a task file or its data cannot be read.
    """
    if missing := missing_packages(PACKAGES):
        raise ConfigError(f"harness.tasks is set, but {missing} is not installed", "pip install 'dontstop[harness]'")
    if twice := next((name for name in config.tasks if config.tasks.count(name) > 1), None):
        raise ConfigError(f"harness.tasks names {twice} twice", "name it once")
    files = _own_files(config.include_path)
    for name in config.functions:
        if name not in files:
            raise ConfigError(
                f"harness.functions: {name} is not one of your task files in harness.include_path",
                nearest(name, files, "set harness.include_path to the folder with its task file"),
            )
    parts = {name: tuple(_leaves(name, files)) for name in config.tasks if name in files or name in _tags(files)}
    wanted = [leaf for leaves in parts.values() for leaf in leaves]
    if twice := next((name for name in wanted if wanted.count(name) > 1), None):
        raise ConfigError(
            f"harness.tasks contains the task {twice} twice, by its own name or through groups or tags",
            "remove all but one of the names that contain it",
        )
    own = {name: _own_task(name, *files[name], name in config.functions) for name in wanted}
    for name in config.tasks:
        if name not in parts:
            _check_built_in(name, {*files, *_tags(files)})
    return HarnessTasks(config, own, parts, {name: _digest(task, digests) for name, task in own.items()})


def missing_packages(packages: Sequence[str]) -> str:
    """Returns the names of the packages that are not installed, as a text. Empty if all are installed."""
    return " and ".join(package for package in packages if importlib.util.find_spec(package) is None)


def mapped(value: Any, function: Callable[[Any], Any], key: Callable[[Any], Any] = lambda key: key) -> Any:
    """Returns a copy of a YAML value in which functions have replaced all values and keys in mappings and lists."""
    if isinstance(value, Mapping):
        return {key(name): mapped(inner, function, key) for name, inner in value.items()}
    return [mapped(inner, function, key) for inner in value] if isinstance(value, list) else function(value)


def _digest(task: OwnTask, digests: Digests) -> str:
    """Returns a digest of a task's content and data, without the paths of files."""
    paths = {str(path): path.name for path in task.data}

    def plain(value: Any) -> Any:
        if isinstance(value, NamedFunction):
            return f"!function {value.name}"
        return paths.get(value, value) if isinstance(value, str) else str(value)

    content = json.dumps(mapped(task.content, plain, str), sort_keys=True)
    return hashlib.sha256(f"{content}\n{digests.of_all(task.data)}".encode()).hexdigest()


# --- task files of the user


class TaskLoader(yaml.SafeLoader):
    """Reads task files without running code."""

    folder: Path


def _named_function(loader: TaskLoader, node: yaml.Node) -> NamedFunction:
    module, _, name = str(node.value).rpartition(".")
    return NamedFunction(loader.folder / f"{module.replace('.', '/')}.py", name)


TaskLoader.add_constructor("!function", _named_function)


def read_task_file(file: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Reads a task file and the files that it includes. The file's own entries override included ones.

    Raises:
        DataError: a file is missing, is not a YAML mapping, or includes itself.
    """
    if file in seen:
        raise DataError(f"{file} includes itself", "remove one of the `include` entries")
    try:
        with file.open("rb") as opened:
            loader = TaskLoader(opened)
            loader.folder = file.parent
            content = loader.get_single_data()
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"the task file {file} cannot be read: {error}", "correct the file or its path") from error
    if not isinstance(content, dict):
        raise DataError(
            f"the task file {file} is not a YAML mapping", "write `task: NAME` and the other fields of a task"
        )
    included = content.pop("include", None) or []
    merged: dict[str, Any] = {}
    for name in included if isinstance(included, list) else [included]:
        merged |= read_task_file((file.parent / str(name)).resolve(), (*seen, file))
    return {**merged, **content}


def _own_files(include_path: str | None) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Returns the file and content of each task and group in harness.include_path, keyed by name."""
    if include_path is None:
        return {}
    folder = user_path(include_path).absolute()
    if not folder.is_dir():
        raise ConfigError(f"harness.include_path: there is no folder {folder}", "correct the path")
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for file in sorted(folder.rglob("*.yaml")):
        content = read_task_file(file.resolve())
        name = content.get("group") or content.get("task")
        if isinstance(name, str):
            if name in found:
                raise ConfigError(f"{found[name][0]} and {file} both define the task {name}", "rename one of them")
            found[name] = file.resolve(), content
    return found


def _tags(files: Mapping[str, tuple[Path, dict[str, Any]]]) -> dict[str, list[str]]:
    """Returns the names of the tasks with each tag, keyed by tag."""
    tags: dict[str, list[str]] = {}
    for name, (_, content) in files.items():
        tag = content.get("tag") or []
        for each in tag if isinstance(tag, list) else [tag]:
            tags.setdefault(str(each), []).append(name)
    return tags


def _leaves(name: str, files: Mapping[str, tuple[Path, dict[str, Any]]], seen: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields the tasks that a name stands for: the task with this name, or the members of the group or tag."""
    if name not in files or "group" in files[name][1]:
        members = _tags(files)[name] if name not in files else files[name][1].get("task")
        for member in members if isinstance(members, list) else []:
            if member in (*seen, name):
                raise ConfigError(
                    f"the group {name} in harness.include_path contains {member!r}, which contains {name!r} itself",
                    f"remove {member!r} from the group {name}",
                )
            if not isinstance(member, str) or (member not in files and member not in _tags(files)):
                raise ConfigError(
                    f"the group {name} in harness.include_path contains {member!r}, which is not one of your task"
                    " files",
                    "list only tasks of your own task files in the group, and name tasks of lm-evaluation-harness in"
                    " harness.tasks",
                )
            yield from _leaves(member, files, (*seen, name))
        return
    yield name


def _own_task(name: str, file: Path, content: Mapping[str, Any], may_run: bool) -> OwnTask:
    """Checks a task of the user, and makes the paths of its data absolute."""
    functions = functions_in(content)
    if functions and not may_run:
        raise ConfigError(
            f"the task {name} ({file}) runs Python code: !function {functions[0].file.stem}.{functions[0].name}",
            f"read {functions[0].file}, and, if you trust the code, allow the task with harness.functions: [{name}]",
        )
    for entry, reason in REFUSED.items():
        if content.get(entry) and not (entry == "custom_dataset" and functions):
            raise ConfigError(
                f"the task {name} ({file}) has `{entry}`, which is refused: {reason}", f"remove `{entry}` from the file"
            )
    metrics = content.get("metric_list") or []
    if any(isinstance(metric, Mapping) and metric.get("hf_evaluate") for metric in metrics):
        raise ConfigError(
            f"the task {name} ({file}) has a metric with `hf_evaluate`, which runs code from the Hugging Face Hub",
            "name a metric of lm-evaluation-harness",
        )
    data: list[Path] = []
    kwargs = dict(content.get("dataset_kwargs") or {})
    path = str(content.get("dataset_path", ""))
    if path in BUILDERS:
        kwargs["data_files"], data = _data_files(name, file, kwargs.get("data_files"))
    elif not content.get("custom_dataset"):
        _check_hub_name(name, file, path)
        check_cached(name, path)
    kwargs.pop("trust_remote_code", None)
    for function in functions:
        if not function.file.is_file():
            raise DataError(
                f"the task {name} ({file}) has a `!function` of {function.file}, which does not exist",
                "correct the `!function` entry, or add the Python file",
            )
    given = {"dataset_kwargs": kwargs} if kwargs else {}
    files = dict.fromkeys([*data, *(function.file for function in functions)])
    return OwnTask(file, {**content, **given, "task": name}, tuple(files))


def _data_files(name: str, file: Path, given: Any) -> tuple[Any, list[Path]]:
    """Returns `data_files` with absolute paths, and the list of files. Relative paths start at the task file."""
    if not given:
        raise DataError(
            f"the task {name} ({file}) names no data files",
            "add `dataset_kwargs: {data_files: {test: FILE}}` to the task file",
        )
    if isinstance(given, Mapping):
        splits = {split: _data_files(name, file, paths) for split, paths in given.items()}
        return {split: paths for split, (paths, _) in splits.items()}, [
            f for _, files in splits.values() for f in files
        ]
    found: list[Path] = []
    for pattern in given if isinstance(given, list) else [given]:
        if "://" in str(pattern) or "::" in str(pattern):
            raise DataError(
                f"the task {name} ({file}): {pattern} is not a local file",
                "download the file, and name the local copy in dataset_kwargs.data_files",
            )
        matches = sorted(glob.glob(str(file.parent / Path(str(pattern)).expanduser()), recursive=True))
        if not matches:
            raise DataError(
                f"the task {name} ({file}): there is no file {pattern}", "correct dataset_kwargs.data_files"
            )
        found += [Path(match) for match in matches]
    return [str(path) for path in found], found


def _check_hub_name(name: str, file: Path, path: str) -> None:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", path) or path.startswith(".") or Path(path).exists() or path == "pandas":
        raise ConfigError(
            f"the task {name} ({file}): dataset_path {path!r} is neither a supported file format nor a dataset of the"
            " Hugging Face Hub",
            f"set dataset_path to one of {', '.join(BUILDERS)} and name your files in dataset_kwargs.data_files, or set"
            " dataset_path to a dataset OWNER/NAME of the Hub",
        )


# --- tasks of the harness


def _check_built_in(name: str, own: set[str]) -> None:
    """Refuses an unknown task, a task that runs code written by a model, and, if offline, data that is not cached."""
    known = built_in_tasks()
    if name not in known:
        raise ConfigError(
            f"harness.tasks: there is no task {name}, neither in lm-evaluation-harness nor in harness.include_path",
            nearest(name, {*known, *own}, "see `lm_eval ls tasks` for all names"),
        )
    file = known[name]
    if file is None:
        return
    content = read_task_file(file)
    if content.get("unsafe_code"):
        raise ConfigError(
            f"harness.tasks: {name} runs the code that a model writes, which is refused", "leave out this task"
        )
    if isinstance(path := content.get("dataset_path"), str) and "group" not in content:
        check_cached(name, path)


@cache
def built_in_tasks() -> dict[str, Path | None]:
    """Returns the file of each task and group of the installed harness, keyed by name. The value is None for tags.

    The names are found by searching the files' text, because reading 14,000 files as YAML takes a minute.
    """
    spec = importlib.util.find_spec("lm_eval")
    assert spec
    assert spec.submodule_search_locations
    found: dict[str, Path | None] = {}
    for folder, _, names in os.walk(Path(next(iter(spec.submodule_search_locations))) / "tasks"):
        for file in names:
            if file.endswith(".yaml"):
                text = Path(folder, file).read_text(encoding="utf-8")
                for match in _NAME.finditer(text):
                    found[match[2]] = Path(folder, file)
                for match in _TAGS.finditer(text):
                    found |= {tag: None for tag in re.findall(r"[\w.+-]+", match[1]) if tag not in found}
    return found


_NAME = re.compile(r"^(task|group):[ \t]*['\"]?([\w.+/-]+)['\"]?[ \t]*$", re.MULTILINE)
_TAGS = re.compile(r"^tag:((?:[ \t]*\n[ \t]*-[^\n]*(?:\n[ \t]*-[^\n]*)*)|[^\n]*)", re.MULTILINE)


def check_cached(name: str, path: str) -> None:
    """Refuses a dataset of the Hub that is not in the cache, if the environment forbids the network."""
    variable = next((name for name in OFFLINE_DATASETS if os.environ.get(name, "0") not in ("", "0")), None)
    if variable and not is_cached(path):
        raise ConfigError(
            f"the task {name} needs the dataset {path} of the Hugging Face Hub, but {variable} is set and the cache"
            " does not have the dataset",
            f"unset {variable} and run the job once with network access, or write a task file with local data"
            " (harness.include_path)",
        )


def is_cached(path: str) -> bool:
    """Returns whether a dataset is in the cache of the library `datasets` or in the cache of the Hub."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    datasets = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    return (datasets / path.replace("/", "___")).is_dir() or (hub / f"datasets--{path.replace('/', '--')}").is_dir()


def without_functions(task: OwnTask, called: Mapping[NamedFunction, Any]) -> dict[str, Any]:
    """Returns a task's content with functions in place of their names."""
    plain = mapped(task.content, lambda value: called[value] if isinstance(value, NamedFunction) else value)
    return {str(key): value for key, value in plain.items()}


def functions_in(content: Mapping[str, Any]) -> list[NamedFunction]:
    """Returns the functions that a task file names."""
    found: list[NamedFunction] = []
    mapped(content, lambda value: found.append(value) if isinstance(value, NamedFunction) else None)
    return found


def with_cache(task: OwnTask, folder: Path) -> OwnTask:
    """Returns a task that stores the converted form of its local data in the given folder, not in the user's cache."""
    kwargs = {**(task.content.get("dataset_kwargs") or {}), "cache_dir": str(folder)}
    return replace(task, content={**task.content, "dataset_kwargs": kwargs}) if task.data else task


@dataclass(frozen=True)
class HarnessRun:
    """A decoder to score, and its tasks."""

    pretrained: Pretrained
    tasks: HarnessTasks
    max_length: int | None
    """Length of the model's longest input [tokens]; None if it has no limit."""
    shared_by: int = 1
    """Number of training runs and tasks that share the cores of a machine."""


def score_harness(run: HarnessRun, folder: str) -> None:
    """Scores the model in a Ray task on all tasks whose file in the folder is missing, and writes a file per task.

    Imports torch and the harness late, after Ray has hidden the GPUs of other tasks.

    Raises:
        DataError: a task cannot be loaded or scored.
    """
    hide_unreserved_gpus()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from adapt.evaluate.benchmark.harness_run import score_tasks

    score_tasks(run, Path(folder))
