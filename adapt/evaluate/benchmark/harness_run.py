"""Scores a decoder on tasks of lm-evaluation-harness, in a Ray task.

The harness's own class for transformers computes the answers, with the model as dontstop loads it: from safetensors
only, with added modules such as adapters. Templates of tasks are rendered by Jinja's sandbox, because a template in
the harness's own Jinja environment could run Python code. If the process is killed and runs again, finished tasks are
not repeated.
"""

import hashlib
import importlib.util
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import BaseLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from lm_eval import utils
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from adapt.evaluate.benchmark import harness_tasks, item_scores
from adapt.evaluate.evaluation_task import Ready, device_of_task, token_counter
from adapt.model import locate, safeguards
from adapt.model.load import check_complete, check_direction, model_class, read_weights
from adapt.model.tokenizer import load_config, load_tokenizer
from adapt.support.errors import DataError

MODULE = "dontstop_harness_function"
"""Prefix of the names of modules that are loaded from the user's Python files."""


def score_tasks(run: harness_tasks.HarnessRun, folder: Path) -> None:
    """Scores the model on all tasks whose file in the folder is missing; see `harness_tasks.score_harness`."""
    loaded = plain_decoder(run.pretrained, run.shared_by)
    config = run.tasks.config
    with item_scores.hushed(), tempfile.TemporaryDirectory() as cache, token_counter(loaded.model) as count:
        use_sandbox()
        # `hushed` hides a harness warning about ignored loading arguments. The warning is wrong: none are passed
        lm = HFLM(
            pretrained=loaded.model,
            tokenizer=loaded.tokenizer,
            batch_size=config.batch_size,
            max_length=run.max_length,
        )
        for name in config.tasks:
            if not (folder / item_scores.file_name(name)).exists():
                parts = {}
                for task in _loaded(run.tasks, name, Path(cache)):
                    begin, before = time.monotonic(), count[0]
                    with item_scores.told_of_task(task.task_name):
                        items = harness_scores(lm, task, run.tasks)
                    took = time.monotonic() - begin
                    parts[task.task_name] = replace(items, tokens=count[0] - before, seconds=took)
                whole = next(iter(parts.values())) if len(parts) == 1 else item_scores.joined_items(parts)
                item_scores.write_items(folder, name, whole)


def plain_decoder(pretrained: locate.Pretrained, shared_by: int = 1) -> Ready:
    """Loads a decoder with its added modules onto the device of this Ray task, with the attention of transformers."""
    device = device_of_task(shared_by)
    config = load_config(pretrained.model, pretrained.trust_remote_code)
    check_direction(config, True, pretrained.model)
    with safeguards.quiet():
        model, report = read_weights(model_class(config), pretrained.model, config, pretrained.trust_remote_code)
        check_complete(report["missing_keys"], report["mismatched_keys"], pretrained.model)
    torch.nn.Module.to(model.eval(), device)
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    return Ready(model, tokenizer, device)


def use_sandbox() -> None:
    """Replaces the harness's Jinja environment with a sandbox, whose templates cannot access Python's internals."""
    if not isinstance(utils.env, SandboxedEnvironment):
        filters = utils.env.filters
        utils.env = SandboxedEnvironment(loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True)
        utils.env.filters.update(filters)


def _loaded(tasks: harness_tasks.HarnessTasks, name: str, cache: Path) -> Sequence[Any]:
    """Loads the tasks that a configured name stands for: one task, or the members of a group or tag."""
    with item_scores.told_of_task(name):
        if name in tasks.parts:
            manager = TaskManager(include_defaults=False)
            own = [_content(harness_tasks.with_cache(tasks.own[part], cache)) for part in tasks.parts[name]]
            return list(manager.load(own)["tasks"].values())
        return list(built_in_index().load([name])["tasks"].values())


@cache
def built_in_index() -> TaskManager:
    """Returns the index of the harness's own tasks, for which the harness parses 14,000 files in about a minute."""
    return TaskManager()


def _content(task: harness_tasks.OwnTask) -> dict[str, Any]:
    return harness_tasks.without_functions(
        task, {function: _imported(function) for function in harness_tasks.functions_in(task.content)}
    )


def _imported(function: harness_tasks.NamedFunction) -> Callable[..., Any]:
    """Loads a function from its Python file. The user has allowed this function in the configuration."""
    module_name = f"{MODULE}_{hashlib.sha256(str(function.file).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module_name, function.file)
    assert spec
    assert spec.loader
    module = sys.modules.get(module_name) or importlib.util.module_from_spec(spec)
    if module_name not in sys.modules:
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    if not hasattr(module, function.name):
        raise DataError(
            f"{function.file} has no function {function.name}", "correct the `!function` entry in the task file"
        )
    found: Callable[..., Any] = getattr(module, function.name)
    return found


def harness_scores(lm: Any, task: Any, tasks: harness_tasks.HarnessTasks) -> item_scores.TaskItems:
    """Scores a model of the harness on one task.

    Changes the few-shot settings of the task.
    """
    config = tasks.config
    # like the harness's `simple_evaluate`, but without collecting facts about the machine, which takes seconds
    own = task.get_config("num_fewshot")
    if config.num_fewshot is not None and own != 0:
        task.set_config(key="num_fewshot", value=config.num_fewshot)
    elif own is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=harness_tasks.FEWSHOT_SEED)
    random.seed(0)
    np.random.seed(harness_tasks.FEWSHOT_SEED)
    torch.manual_seed(harness_tasks.FEWSHOT_SEED)
    found = evaluate(lm=lm, task_dict={"tasks": {task.task_name: task}}, limit=config.limit, bootstrap_iters=0)
    name = task.task_name
    return items_of_samples(task, found["samples"][name], found["results"][name], found["higher_is_better"][name])


def items_of_samples(
    task: Any, samples: Sequence[Mapping[str, Any]], scores: Mapping[str, Any], better: Mapping[str, bool | None]
) -> item_scores.TaskItems:
    """Returns the scores per item of a task of the harness.

    `samples` has an entry per item and filter, `scores` is keyed by `METRIC,FILTER`, and `better` by metric.
    """
    by_filter: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for sample in samples:
        by_filter[sample["filter"]].append(sample)
    measures: dict[str, item_scores.ItemMeasure] = {}
    for name, of_filter in by_filter.items():
        ordered = sorted(of_filter, key=lambda sample: int(sample["doc_id"]))
        for metric in ordered[0]["metrics"]:
            score = scores.get(f"{metric},{name}")
            if isinstance(score, int | float):
                shown = metric if name == "none" else f"{metric} ({name})"
                aggregation = getattr(task.aggregation().get(metric), "__name__", "")
                values = [sample[metric] for sample in ordered]
                measures[shown] = item_scores.ItemMeasure.of(
                    float(score), better.get(metric) is not False, aggregation, values
                )
    items = sorted(next(iter(by_filter.values())), key=lambda sample: int(sample["doc_id"]))
    if not measures:
        raise DataError(f"the task {task.task_name} has no numeric metric", "choose another task")
    return item_scores.TaskItems(
        library="harness",
        items=len(items),
        measures=measures,
        digests=[str(item["doc_hash"]) for item in items],
        texts=[texts_of_item(task, item["doc"]) for item in items],
    )


def texts_of_item(task: Any, document: Mapping[str, Any]) -> list[str]:
    """Returns the text of an item that must not be in training text: the question with its answer.

    If the question is not a text (the item has one context per choice), the contexts are used instead.
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
