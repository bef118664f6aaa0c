"""Finds the configured tasks of MTEB, and reads the user's own tasks, before anything runs."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapt.config import CorpusConfig, MtebConfig, OwnMtebTask, RetrievalConfig, what
from adapt.corpus.files import formats, records
from adapt.corpus.files.manifest import Manifest, build_manifest, check_listed, expand_paths
from adapt.evaluate.benchmark.harness_tasks import check_cached, missing_packages
from adapt.evaluate.retrieval import check_pairs
from adapt.model import locate, sentence_vectors
from adapt.ray.runtime import hide_unreserved_gpus
from adapt.runner.digest import Digests
from adapt.runner.stage import deciding
from adapt.support.errors import ConfigError, DataError, nearest

PACKAGES = ("mteb", "sentence_transformers")
FILES = ("test", "train", "corpus")
"""Fields of a user-defined task that name files."""
NEEDED = {"classification": ("train",), "sts": (), "retrieval": ()}
"""Fields that a kind of task needs in addition to `test`."""
RETRIEVAL_FIELDS = {
    "pairs": "test",
    "query_field": "text_field",
    "positive_field": "pair_field",
    "corpus_field": "text_field",
    "corpus": "corpus",
}
"""Fields of a user-defined task of kind `retrieval`, keyed by the field of the section `retrieval` that it becomes."""
EVERYTHING = 10**9
"""Limit for queries and documents that is never reached. The code for the section `retrieval` draws samples up to a
limit, but user-defined tasks use all their texts."""


@dataclass(frozen=True)
class MtebTasks:
    """The configured tasks, and the files of the user's own tasks."""

    config: MtebConfig
    files: Mapping[str, Mapping[str, Manifest]]
    """Files of each user-defined task with digests of their contents, keyed by task and field."""

    def what(self) -> dict[str, Any]:
        """Returns the settings and digests that determine the scores, as a part of a stage's key."""
        own = {
            task.name: {
                **{name: value for name, value in vars(task).items() if name not in ("name", *FILES)},
                **{field: listed.digest for field, listed in self.files[task.name].items()},
            }
            for task in self.config.own
        }
        return {**what(self.config), "own": own, **deciding("mteb", "scikit-learn")}

    def check_unchanged(self) -> None:
        """Raises DataError if a file of a user-defined task has changed since it was listed."""
        for listed in (manifest for files in self.files.values() for manifest in files.values()):
            check_listed(listed)


def mteb_tasks(config: MtebConfig, digests: Digests) -> MtebTasks:
    """Finds and checks the configured tasks.

    Raises:
        ConfigError: the package is missing, or a name is unknown or occurs twice.
        DataError: the files of a user-defined task are missing, or lack a field.
    """
    if missing := missing_packages(PACKAGES):
        raise ConfigError(
            f"mteb.tasks or mteb.own is set, but {missing} is not installed", "pip install 'dontstop[mteb]'"
        )
    names = [*config.tasks, *(task.name for task in config.own)]
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise ConfigError(
            f"mteb.tasks and mteb.own contain two tasks named {twice}", "leave one of them out, or rename your own task"
        )
    if config.tasks:
        _check_known(config)
    return MtebTasks(config, {task.name: _listed(task, digests) for task in config.own})


def _check_known(config: MtebConfig) -> None:
    """Refuses unknown tasks and languages, tasks on images and sounds, and, if offline, data that is not cached."""
    import mteb

    known = {task.metadata.name: task.metadata for task in mteb.get_tasks(exclude_superseded=False)}
    for name in config.tasks:
        if name not in known:
            raise ConfigError(f"mteb.tasks: MTEB has no task {name}", nearest(name, known, "see mteb.get_tasks()"))
        if known[name].modalities != ["text"]:
            raise ConfigError(
                f"mteb.tasks: {name} does not use text alone, so dontstop cannot measure it", "leave out this task"
            )
        try:
            mteb.get_task(name, languages=config.languages or None)
        except ValueError as error:
            raise ConfigError(
                f"mteb.languages: {name} has none of the languages {', '.join(config.languages)}",
                "remove the task from mteb.tasks, or change mteb.languages",
            ) from error
        check_cached(name, str(known[name].dataset["path"]))


def _listed(task: OwnMtebTask, digests: Digests) -> dict[str, Manifest]:
    """Lists the files of a user-defined task, and checks the first row of each file."""
    for name in ("test", *NEEDED[task.kind]):
        if not getattr(task, name):
            raise ConfigError(
                f"mteb.own: the task {task.name} of kind {task.kind} has no `{name}`",
                f"set `{name}` to the paths of its files",
            )
    used = ("test", *NEEDED[task.kind], *(("corpus",) if task.kind == "retrieval" and task.corpus else ()))
    if task.kind == "retrieval":
        with naming_fields_of(task):
            check_pairs(as_retrieval(task))
    else:
        for name in used:
            next(own_rows(task, name))
    return {name: build_manifest(replace(CorpusConfig(), paths=getattr(task, name)), digests) for name in used}


def as_retrieval(task: OwnMtebTask) -> RetrievalConfig:
    """Returns a user-defined task of kind `retrieval` in the form of the section `retrieval`, without limits."""
    return RetrievalConfig(
        pairs=task.test,
        query_field=task.text_field,
        positive_field=task.pair_field,
        corpus=task.corpus,
        corpus_field=task.text_field,
        max_queries=EVERYTHING,
        max_documents=EVERYTHING,
    )


@contextmanager
def naming_fields_of(task: OwnMtebTask) -> Iterator[None]:
    """Raises the block's errors with the names of the task's fields in place of those of the section `retrieval`."""
    try:
        yield
    except DataError as error:
        what, fix = error.what, error.fix
        for name, field in RETRIEVAL_FIELDS.items():
            what, fix = what.replace(f"retrieval.{name}", field), fix.replace(f"retrieval.{name}", field)
        raise DataError(f"mteb.own: {task.name}: {what}", fix) from error


def own_rows(task: OwnMtebTask, split: str) -> Iterator[dict[str, Any]]:
    """Yields a split's rows of a user-defined task. Texts, pairs and labels have the field names that MTEB uses.

    Raises:
        DataError: a file is broken, or a row lacks a field or has a value of the wrong type.
    """
    texts = {"sts": {"sentence1": task.text_field, "sentence2": task.pair_field}}.get(
        task.kind, {"text": task.text_field}
    )
    count = 0
    for file in expand_paths(getattr(task, split)):
        for line, record in records.read_objects(file):
            place = f"mteb.own: {task.name}: {file}, line {line}"
            if isinstance(record, formats.Bad):
                raise DataError(f"{place} cannot be read: {record}", "correct or remove the row")
            row: dict[str, Any] = {}
            for name, field in texts.items():
                row[name] = _field(record, field, place)
                if not isinstance(row[name], str) or not row[name].strip():
                    raise DataError(f"{place} has no text in {field!r}", "correct or remove the row")
            label = _field(record, task.label_field, place)
            if task.kind == "sts":
                row["score"] = _score(label, place)
            else:
                row["label"] = _class(label, place)
            count += 1
            yield row
    if not count:
        raise DataError(f"mteb.own: {task.name}: {getattr(task, split)} has no rows", "name files that contain rows")


def _field(record: Mapping[str, Any], field: str, place: str) -> Any:
    if field not in record:
        names = ", ".join(map(repr, record)) or "none"
        raise DataError(
            f"{place} has no field {field!r}; it has {names}", "set text_field, pair_field or label_field of the task"
        )
    return record[field]


def _score(label: Any, place: str) -> float:
    try:
        score = float(label)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{place} has the score {label!r}, which is not a finite number", "correct or remove the row")
    return score


def _class(label: Any, place: str) -> str:
    is_missing = not isinstance(label, str | int | float) or not str(label).strip()
    if is_missing or (isinstance(label, float) and math.isnan(label)):
        raise DataError(f"{place} has the label {label!r}, which is no class", "correct or remove the row")
    return str(label)


@dataclass(frozen=True)
class MtebRun:
    """A model to score, and its tasks."""

    pretrained: locate.Pretrained
    vectors: sentence_vectors.SentenceVectors
    """How the model's sentence vectors are computed."""
    tasks: MtebTasks
    shared_by: int = 1
    """Number of training runs and tasks that share the cores of a machine."""


def score_mteb(run: MtebRun, folder: str) -> None:
    """Scores the model in a Ray task on all tasks whose file in the folder is missing, and writes a file per task.

    Imports torch and MTEB late, after Ray has hidden the GPUs of other tasks.

    Raises:
        DataError: a task cannot be loaded or scored.
        ModelError: the model has added modules, which sentence-transformers would ignore.
    """
    hide_unreserved_gpus()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from adapt.evaluate.benchmark.mteb_run import score_mteb_tasks

    score_mteb_tasks(run, Path(folder))
