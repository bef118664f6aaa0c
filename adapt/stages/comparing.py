"""The stage that lays several models side by side."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from adapt.errors import ConfigError, ModelError
from adapt.model.locate import tokenizer_files
from adapt.runner import Outcome, Record, Stage
from adapt.stages.base import Inputs, Start
from adapt.stages.measuring import Measuring

FIRST = "base"
"""What the model of model.path is called in a comparison."""
LOSS, NEIGHBOURS, PERPLEXITY = "loss", "neighbours", "perplexity"
"""What was measured of a model: beginnings of the names of inputs, `loss of base`."""


class Comparing(Measuring):
    """Several models, on the same text."""

    def compared(self, made: Mapping[str, Start] | None = None) -> Stage:
        """Several models on several domains (Don't Stop Pretraining, table 12).

        The first, called `base`, is model.path; then come comparison.models. Domains are the corpus's sources, or
        `domain` where it has none, and `general`. Where there are tasks with one label a text, features are judged too.

        Args:
            made: models that stages of the same chain make, by what comparison.models calls their path.

        Raises:
            ConfigError: a name is given twice, or cannot name a folder.
            ModelError: a model has another tokenizer.
        """
        config = self.config
        (_, sources), general, tasks = self.domain(), self._general(), self._single_label_tasks()
        others = config.comparison.models or []
        _check_names("corpus.sources", [*sources, *general])
        _check_names("comparison.models", [FIRST, *(model.name for model in others)])
        corpora = {**sources, **general}
        models = {FIRST: self, **{model.name: self._with_model(model.path, made) for model in others}}
        inputs: dict[str, Stage] = {}
        for name, model in models.items():
            inputs[f"{LOSS} of {name}"] = model.evaluated(name, corpora, model.start)
            if tasks:
                inputs[f"{NEIGHBOURS} of {name}"] = model.neighbours(name, tasks)
            if config.comparison.pseudo_perplexity:
                inputs[f"{PERPLEXITY} of {name}"] = model.perplexity(name, corpora)
        self._digests.save()
        samples = config.evaluation.bootstrap_samples
        identity = {"models": list(models), "domains": list(corpora), "bootstrap_samples": samples}

        def run(folder: Path, done: Inputs) -> Outcome:
            return Outcome(_side_by_side(done, list(corpora), samples, folder))

        return Stage("compare", config.name, identity, run, inputs, needs={})

    def _single_label_tasks(self) -> dict[str, Stage]:
        """The tasks on which features are judged: neighbours vote for one label."""
        tasks = [task for task in (self.config.task, *self.config.tasks) if task.train and task.kind == "single_label"]
        _check_names("task and tasks", [task.name for task in tasks])
        return {task.name: self.task(task) for task in tasks}

    def _with_model(self, path: str, made: Mapping[str, Start] | None = None) -> Self:
        """The same for another model with the same tokenizer."""
        if made and path in made:
            other = type(self)(self.config, made[path])
        else:
            other = type(self)(replace(self.config, model=replace(self.config.model, path=path)))
        ours, theirs = (each.pretrained.tokenizer for each in (self, other))
        if self._digests.of_all(tokenizer_files(ours)) != self._digests.of_all(tokenizer_files(theirs)):
            other_one = f"{path} has another tokenizer than {self.config.model.path}"
            raise ModelError(other_one, "compare models that share one")
        return other


def _side_by_side(inputs: Inputs, domains: list[str], samples: int, folder: Path) -> dict[str, Any]:
    from adapt.evaluate.matrix import compare_models

    losses = {model: record.path for model, record in _of_models(inputs, LOSS).items()}
    metrics = compare_models(losses, domains, samples, folder)
    metrics["overlap"] = {
        model: {domain: record.metrics[f"{domain}_overlap"] for domain in domains}
        for model, record in _of_models(inputs, LOSS).items()
    }
    if found := _of_models(inputs, NEIGHBOURS):
        tasks = next(iter(found.values())).metrics
        metrics["knn"] = {
            task: {model: record.metrics[task]["accuracy"] for model, record in found.items()} for task in tasks
        }
        metrics["knn_left_out"] = {task: values["left_out"] for task, values in tasks.items()}
    if found := _of_models(inputs, PERPLEXITY):
        metrics["pseudo_perplexity"] = {
            domain: {model: record.metrics[domain] for model, record in found.items()} for domain in domains
        }
    return metrics


def _of_models(inputs: Inputs, what: str) -> dict[str, Record]:
    start = f"{what} of "
    return {name.removeprefix(start): record for name, record in inputs.items() if name.startswith(start)}


def _check_names(field: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1 or not re.fullmatch(r"[\w.+-]+", name):
            raise ConfigError(
                f"{field}: the name {name!r} cannot name a folder, or is taken ({', '.join(names)})",
                "give each a name of its own, of letters, digits, '.', '+', '-' and '_'",
            )
