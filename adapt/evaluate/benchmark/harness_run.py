"""Scores a decoder on tasks of lm-evaluation-harness, in a Ray task.

The harness's own class for transformers computes the answers, with the model as dontstop loads it: from safetensors
only, with added modules such as adapters. Templates of tasks are rendered by Jinja's sandbox, because a template of the
harness's own environment could run Python code. A finished task is not repeated if the process is killed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adapt.evaluate.benchmark.harness_tasks import (
    HarnessTasks,
    NamedFunction,
    OwnTask,
    functions_in,
    with_cache,
    without_functions,
)
from adapt.evaluate.benchmark.item_scores import ItemMeasure, TaskItems, file_name, joined_items, write_items
from adapt.model.locate import Pretrained
from adapt.ray.runtime import hide_unreserved_gpus
from adapt.support.errors import AdaptError, DataError

MODULE = "dontstop_harness_function"
"""Beginning of the names of modules with functions of the user's tasks."""


@dataclass(frozen=True)
class HarnessRun:
    """A decoder to score, and its tasks."""

    pretrained: Pretrained
    tasks: HarnessTasks
    max_length: int | None
    """Length of the model's longest input [tokens]; None if it has no limit."""
    shared_by: int = 1
    """Number of trainings and tasks that share the cores of a machine."""


def score_harness(run: HarnessRun, folder: str) -> None:
    """Scores the model on all tasks whose file in the folder is missing, and writes a file per task.

    Raises:
        DataError: a task cannot be loaded or scored.
    """
    hide_unreserved_gpus()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from lm_eval.models.huggingface import HFLM

    from adapt.evaluate.benchmark.plain_model import plain_decoder, token_counter

    loaded = plain_decoder(run.pretrained, run.shared_by)
    config = run.tasks.config
    with hushed(), tempfile.TemporaryDirectory() as cache, token_counter(loaded.model) as count:
        use_sandbox()
        # the harness warns that a loaded model ignores its arguments for loading, which are not given
        lm = HFLM(
            pretrained=loaded.model,
            tokenizer=loaded.tokenizer,
            batch_size=config.batch_size,
            max_length=run.max_length,
        )
        for name in config.tasks:
            if not (Path(folder) / file_name(name)).exists():
                parts = {}
                for task in _loaded(run.tasks, name, Path(cache)):
                    begin, before = time.monotonic(), count[0]
                    with told_of_task(task.task_name):
                        items = harness_scores(lm, task, run.tasks)
                    took = time.monotonic() - begin
                    parts[task.task_name] = replace(items, tokens=count[0] - before, seconds=took)
                whole = next(iter(parts.values())) if len(parts) == 1 else joined_items(parts)
                write_items(Path(folder), name, whole)


@contextmanager
def hushed() -> Iterator[None]:
    """Hides progress bars and messages of the libraries, which would fill the log of a job."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
        yield


@contextmanager
def told_of_task(name: str) -> Iterator[None]:
    """Turns errors of a library into a DataError that names the task."""
    try:
        yield
    except AdaptError:
        raise
    except Exception as error:  # libraries raise many types of errors, depending on the task
        said = f"{type(error).__name__}: {error}".split("\n")[0][:300]
        raise DataError(
            f"the task {name} cannot be measured: {said}",
            "check the task's file and data; a task of the Hugging Face Hub needs the network or its cache",
        ) from error


def use_sandbox() -> None:
    """Replaces the harness's environment for templates with one that refuses access to Python's internals."""
    from jinja2 import BaseLoader, StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    if not isinstance(utils.env, SandboxedEnvironment):
        filters = utils.env.filters
        utils.env = SandboxedEnvironment(loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True)
        utils.env.filters.update(filters)


def _loaded(tasks: HarnessTasks, name: str, cache: Path) -> Sequence[Any]:
    """Loads the tasks that a configured name stands for."""
    from lm_eval.tasks import TaskManager

    with told_of_task(name):
        if name in tasks.parts:
            manager = TaskManager(include_defaults=False)
            own = [_content(with_cache(tasks.own[part], cache)) for part in tasks.parts[name]]
            return list(manager.load(own)["tasks"].values())
        return list(TaskManager().load([name])["tasks"].values())


def _content(task: OwnTask) -> dict[str, Any]:
    return without_functions(task, {function: _imported(function) for function in functions_in(task)})


def _imported(function: NamedFunction) -> Callable[..., Any]:
    """Loads a function that the user has allowed from its Python file."""
    module_name = f"{MODULE}_{hashlib.sha256(str(function.file).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module_name, function.file)
    assert spec
    assert spec.loader
    module = sys.modules.get(module_name) or importlib.util.module_from_spec(spec)
    if module_name not in sys.modules:
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    if not hasattr(module, function.name):
        raise DataError(f"{function.file} has no function {function.name}", "correct the `!function` entry")
    found: Callable[..., Any] = getattr(module, function.name)
    return found


def harness_scores(lm: Any, task: Any, tasks: HarnessTasks) -> TaskItems:
    """Scores a model of the harness on one task.

    Args:
        lm: model of the harness.
        task: task of the harness.
        tasks: settings of all tasks.
    """
    import torch
    from lm_eval.evaluator import evaluate

    config = tasks.config
    # as `simple_evaluate` of the harness does, which would also collect facts about the machine, which takes seconds
    own = task.get_config("num_fewshot")
    if config.num_fewshot is not None and own != 0:
        task.set_config(key="num_fewshot", value=config.num_fewshot)
    elif own is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=config.fewshot_seed)
    random.seed(0)
    np.random.seed(config.fewshot_seed)
    torch.manual_seed(config.fewshot_seed)
    found = evaluate(lm=lm, task_dict={"tasks": {task.task_name: task}}, limit=config.limit, bootstrap_iters=0)
    name = task.task_name
    return items_of_samples(task, found["samples"][name], found["results"][name], found["higher_is_better"][name])


def items_of_samples(
    task: Any, samples: Sequence[Mapping[str, Any]], scores: Mapping[str, Any], better: Mapping[str, bool | None]
) -> TaskItems:
    """Returns the scores per item of a task of the harness.

    Args:
        task: the task.
        samples: the harness's samples, one per item and filter.
        scores: the harness's scores, keyed by `METRIC,FILTER`.
        better: whether higher scores are better, keyed by metric.
    """
    by_filter: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for sample in samples:
        by_filter[sample["filter"]].append(sample)
    measures: dict[str, ItemMeasure] = {}
    for name, of_filter in by_filter.items():
        ordered = sorted(of_filter, key=lambda sample: int(sample["doc_id"]))
        for metric in ordered[0]["metrics"]:
            score = scores.get(f"{metric},{name}")
            if isinstance(score, int | float):
                shown = metric if name == "none" else f"{metric} ({name})"
                aggregation = getattr(task.aggregation().get(metric), "__name__", "")
                values = [sample[metric] for sample in ordered]
                measures[shown] = ItemMeasure.of(float(score), better.get(metric) is not False, aggregation, values)
    items = sorted(next(iter(by_filter.values())), key=lambda sample: int(sample["doc_id"]))
    if not measures:
        raise DataError(f"the task {task.task_name} has no metric with a number", "choose another task")
    return TaskItems(
        library="harness",
        items=len(items),
        measures=measures,
        digests=[str(item["doc_hash"]) for item in items],
        texts=[texts_of_item(task, item["doc"]) for item in items],
    )


def texts_of_item(task: Any, document: Mapping[str, Any]) -> list[str]:
    """Returns the text of an item that must not be in training text: the question with its answer.

    If the question is not a text (the item has one context per choice), the contexts take its place.
    """
    asked, target = task.doc_to_text(document), task.doc_to_target(document)
    has_choices = task.get_config("doc_to_choice") is not None
    choices = [str(choice) for choice in task.doc_to_choice(document)] if has_choices else []
    if not isinstance(asked, str):
        return choices
    if isinstance(target, int) and choices:
        answers = [choices[target]] if 0 <= target < len(choices) else []
    else:
        answers = [str(answer) for answer in target] if isinstance(target, list) else [str(target)]
    return [f"{asked} {answer}".strip() for answer in answers] or [asked]
