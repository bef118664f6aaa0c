"""Domains learnt one after another (Continual Pre-training of Language Models), beside one by one and all at once."""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from adapt.config import TaskConfig
from adapt.corpus.sources import sources_of
from adapt.model.locate import Pretrained
from adapt.runner import Outcome, Stage
from adapt.stages.adapting import Adapting
from adapt.stages.base import Inputs
from adapt.stages.domains import Noted, check_distinct, check_domains, domain_of


@dataclass(frozen=True)
class Learnt:
    """A model of the sequence, after some of its domains."""

    after: int
    """Domains learnt."""
    catalogue: "Continual"
    """Whose start the training had."""
    training: Stage
    domain: str
    """What its export is about; empty for all together."""
    seen: tuple[str, ...]
    """Domains on whose text it is measured and whose tasks it is taught."""
    importance: Stage | None = None
    """What its training was masked by."""


class Continual(Adapting):
    """A sequence of domains and their end tasks."""

    _noted: Noted | None = None

    def sequence(self) -> Stage:
        """The domains of corpus.sources, learnt in sequence.order; all that is measured of every model on the way.

        For each domain: importance (general knowledge's first), training, importance of the domain, export, held-out
        losses, and the tasks of all domains seen so far, each taught to a copy of the model, which is not told the
        domain (arXiv 2302.03241, section 4). Every stage depends on the domains before it alone: one that is added at
        the end redoes nothing, another order shares what it has in common.

        Raises:
            ConfigError: a domain is unknown, or comes twice, by its name or by its text; a task belongs to none; or the
                sequence of this name was begun otherwise.
        """
        order = check_domains(self.config)
        tasks = self._tasks_of(order)
        texts = self._texts(order)
        check_distinct(texts)
        if self.config.sequence.mode == "continual":
            self._noted = Noted.of(self.root, self.config.name, texts)
            self._noted.check()
        models = list(self._models(order, texts))
        inputs: dict[str, Stage] = {
            **{f"text of {name}": text for name, text in texts.items()},
            **{f"task {task.name}": self.task(task) for task in tasks},
            **{f"loss of {name}": self._measured_before(texts[name]) for name in order},
        }
        for model in models:
            inputs |= self._made(model, texts) | self._tested(model, tasks, order)
        if self.config.sequence.forward_transfer:
            inputs |= {name: stage for task in tasks for name, stage in self._taught(self, task, 0)}
        last = models[-1]
        if last.importance and (importance := self._importance_after(last, texts)):
            inputs[f"importance {last.after}"] = importance
        inputs["training"] = last.training
        self._digests.save()
        config = self.config
        identity = {
            "order": order,
            "mode": config.sequence.mode,
            "method": config.method.kind,
            "seed": config.seed,
            "finetune_seeds": config.finetune.seeds,
            "tasks": {task.name: domain_of(task) for task in tasks},
        }

        def run(folder: Path, done: Inputs) -> Outcome:
            from adapt.evaluate.sequence import summarize

            return summarize(identity, config.das, done, self.unprotected())

        return Stage("sequence", config.name, identity, run, inputs, needs={})

    def _tasks_of(self, order: list[str]) -> list[TaskConfig]:
        given = [self.config.task, *self.config.tasks] if self.config.task.train else self.config.tasks
        return [task for task in given if domain_of(task) in order]

    def _texts(self, order: list[str]) -> dict[str, Stage]:
        """The domains' text, each by itself: what one trains on says nothing of what another may.

        Only what one measures another must not train on: all hold out the same documents, and of near copies, where
        those are looked for, the domain that is listed later gives way.
        """
        near, measured = self.config.corpus.deduplicate == "near", self.measured()
        before, texts = self._beside(), {}
        for name, corpus in sources_of(self.config.corpus):
            if name in order:
                dedup = self.deduplicated([(name, corpus)], before)
                texts[name] = self.prepared(corpus, f"{self.config.name}-{name}", dedup, measured=measured)
                before = [*before, (name, corpus)] if near else []
        return {name: texts[name] for name in order}

    def _models(self, order: list[str], texts: Mapping[str, Stage]) -> Iterator[Learnt]:
        mode = self.config.sequence.mode
        if mode == "joint":
            yield self._all_at_once(order, texts)
        elif mode == "separate":
            for number, name in enumerate(order, start=1):
                alone = self._on_one_domain(name)
                yield Learnt(number, alone, alone.trained({"domain": texts[name]}, alone._replayed()), name, (name,))
        else:
            yield from self._one_after_another(order, texts)

    def _one_after_another(self, order: list[str], texts: Mapping[str, Stage]) -> Iterator[Learnt]:
        importance, last = self.general_importance([texts[order[0]]]), self
        for number, name in enumerate(order, start=1):
            catalogue = last._on_one_domain(name)
            catalogue._noted = self._noted and self._noted.first(number)
            training = catalogue.trained({"domain": texts[name]}, catalogue._replayed(), importance=importance)
            learnt = Learnt(number, catalogue, training, name, tuple(order[:number]), importance)
            yield learnt
            importance = self._importance_after(learnt, texts)
            last = self._from(training)

    def _importance_after(self, learnt: Learnt, texts: Mapping[str, Stage]) -> Stage | None:
        return learnt.catalogue.domain_importance(texts[learnt.domain], learnt.training, learnt.importance)

    def _all_at_once(self, order: list[str], texts: Mapping[str, Stage]) -> Learnt:
        """As many steps as all domains have together."""
        config, training = self.config, self.config.training
        given = {name: getattr(training, name) for name in ("max_steps", "max_tokens")}
        limits = {name: value * len(order) for name, value in given.items() if value}
        sources = [source for source in config.corpus.sources if source.name in order]
        joint = copy(self)
        corpus = replace(config.corpus, sources=sources)
        joint.config = replace(config, corpus=corpus, training=replace(training, **limits))
        training_stage = joint.trained(self._as_listed(texts), joint._replayed())
        return Learnt(len(order), joint, training_stage, "", tuple(order))

    def _as_listed(self, texts: Mapping[str, Stage]) -> dict[str, Stage]:
        """In the order of the configuration: at once, domains have none of their own."""
        return {name: texts[name] for name, _ in sources_of(self.config.corpus) if name in texts}

    def _on_one_domain(self, name: str) -> Self:
        """The same with one of its sources as the whole corpus."""
        alone = copy(self)
        corpus = dict(sources_of(self.config.corpus))[name]
        alone.config = replace(self.config, name=f"{self.config.name}-{name}", corpus=corpus)
        return alone

    def _from(self, training: Stage) -> Self:
        """The same, with the model that a training leaves to begin with."""
        other = copy(self)
        other.start = training
        return other

    def _train(self, stage: Stage, folder: Path, inputs: Inputs, start: Pretrained) -> Outcome:
        if self._noted:
            self._noted.save()
        return super()._train(stage, folder, inputs, start)

    def _made(self, model: Learnt, texts: Mapping[str, Stage]) -> dict[str, Stage]:
        """The model's export, which measures it on its domain and on general text; and its losses on the others."""
        domain = texts[model.domain] if model.domain else self.gathered(self._as_listed(texts))
        corpora = {"domain": domain, **self._general()}
        export = model.catalogue.exported({**corpora, "training": model.training}, list(corpora))
        others = {name: texts[name] for name in model.seen if name != model.domain}
        found = {f"export {model.after}": export}
        if model.importance:
            found[f"importance {model.after - 1}"] = model.importance
        if others:
            found[f"losses {model.after}"] = self.evaluated(f"after-{model.after}", others, model.training)
        return found

    def _measured_before(self, text: Stage) -> Stage:
        """The loss of the model to begin with, on a domain and on general text: what its export compares with."""
        return self.evaluated("before", {"domain": text, **self._general()}, self.start)

    def _tested(self, model: Learnt, tasks: list[TaskConfig], order: list[str]) -> dict[str, Stage]:
        """The model, taught every task of the domains that it is tested on, once a seed."""
        sequence, taught = self.config.sequence, self._from(model.training)
        looks_ahead = sequence.forward_transfer and sequence.mode == "continual"
        ahead = order[model.after : model.after + 1] if looks_ahead else []
        seen = model.seen if sequence.full_matrix or model.after == len(order) else (model.domain,)
        wanted = [task for task in tasks if domain_of(task) in {*seen, *ahead}]
        return {name: stage for task in wanted for name, stage in self._taught(taught, task, model.after)}

    def _taught(self, catalogue: "Continual", task: TaskConfig, after: int) -> Iterator[tuple[str, Stage]]:
        for seed in self.config.finetune.seeds:
            one = copy(catalogue)
            one.config = replace(self.config, name=f"{self.config.name}-{task.name}", task=task)
            yield f"{task.name} {seed} after {after}", one.finetuned(seed)
