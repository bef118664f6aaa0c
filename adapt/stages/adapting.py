"""The stages that adapt a model: to a domain (DAPT), to tasks (TAPT); and the model that they hand over."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from adapt.config import TaskConfig
from adapt.corpus.roles import FILES
from adapt.errors import ConfigError
from adapt.runner import Outcome, Stage
from adapt.stages.base import Inputs
from adapt.stages.comparing import Comparing
from adapt.stages.corpora import MEASURED
from adapt.stages.importance import Importances
from adapt.stages.texts import Texts


class Adapting(Comparing, Texts, Importances):
    """Jobs that end with an adapted model."""

    def dapt(self) -> Stage:
        """Domain-adaptive pre-training (Don't Stop Pretraining, section 3), from the files to the exported model."""
        domain, sources = self.domain()
        corpora = {"domain": domain, **self._general()}
        training = self.trained(sources, self._replayed(), importance=self.general_importance(list(sources.values())))
        # in the order they run: all that can fail on the data comes before the training
        stage = self.exported({**corpora, "training": training}, list(corpora))
        self._digests.save()
        return stage

    def tapt(self) -> Stage:
        """Task-adaptive pre-training (Don't Stop Pretraining, sections 4 and 5), to the exported model.

        The text is that of the tasks' train split, and, where it is configured, of a pool (Curated-TAPT) or a random
        part of it (RAND-TAPT). The loss is measured on the text of dev.

        Raises:
            ConfigError: a part of a pool is asked for, and there is none.
        """
        domainless = replace(self.config.corpus, **FILES, paths=[])  # nor are its sources' weights those of tasks
        self.config = self.whole = replace(self.config, corpus=domainless)
        tapt, tasks = self.config.tapt, [self.config.task, *self.config.tasks]
        if tapt.random_per_example and not tapt.pool_paths:
            raise ConfigError(
                "tapt.random_per_example is set, but tapt.pool_paths is not", "name the pool, or remove it"
            )
        dev = self.prepared_texts(self.task_texts(tasks, ["dev"]), heldout=True)
        measured = {**self.measured(), **({} if tapt.transductive else {f"{MEASURED}dev": dev})}
        sources = {task.name: self._train_text(task, tasks, measured) for task in tasks}
        unseen = None if tapt.transductive else self.task_texts(tasks, ["dev", "test"])
        if tapt.pool_paths:
            sources["(pool)"] = self._from_pool(tasks, unseen, measured)
        text = next(iter(sources.values())) if len(sources) == 1 else self.gathered(sources)
        corpora = {"domain": dev, **self._general()}
        training = self.trained(
            sources,
            self.general_text(unseen, measured),
            tapt.batch_examples,
            tapt.transductive,
            self.general_importance(list(sources.values())),
        )
        stage = self.exported({**corpora, "text": text, "training": training}, list(corpora))
        self._digests.save()
        return stage

    def _train_text(self, task: TaskConfig, tasks: list[TaskConfig], measured: Mapping[str, Stage]) -> Stage:
        """What TAPT may see of a task."""
        if self.config.tapt.transductive:
            return self.prepared_texts(self.task_texts([task], ["train", "dev", "test"]), measured=measured)
        others = [other for other in tasks if other != task]
        texts = self.task_texts([task], ["train"], without=["dev", "test"], others=others)
        return self.prepared_texts(texts, measured=measured)

    def _from_pool(self, tasks: list[TaskConfig], unseen: Stage | None, measured: Mapping[str, Stage]) -> Stage:
        if not self.config.tapt.random_per_example:
            return self.pool(unseen, measured)
        return self.prepared_texts(self.random_texts([self.task(task) for task in tasks], unseen, measured))

    def exported(self, needed: Mapping[str, Stage], corpora: list[str]) -> Stage:
        """The deliverable: the trained model, its card, and what it gained and lost on held-out text."""
        texts = {name: needed[name] for name in corpora}
        inputs = {
            **needed,
            "before": self.evaluated("before", texts, self.start),
            "after": self.evaluated("after", texts, needed["training"]),
        }
        identity = {
            "bootstrap_samples": self.config.evaluation.bootstrap_samples,
            **({"transductive": True} if "text" in needed and self.config.tapt.transductive else {}),
        }
        return Stage("export", self.config.name, identity, lambda folder, done: self._export(folder, done), inputs)

    def _export(self, folder: Path, inputs: Inputs) -> Outcome:
        from adapt.evaluate.export import export

        return export(self.config, folder, inputs)
