"""The catalogue: the jobs, each as its last stage."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from adapt.chain import Outcome, Stage
from adapt.config import what
from adapt.errors import ConfigError, ModelError
from adapt.model.locate import tokenizer_files
from adapt.stages.base import Inputs
from adapt.stages.corpora import general_corpus
from adapt.stages.training import Training
from adapt.train.job import MODEL_FOLDER


class Catalogue(Training):
    """Builds the stages of one configuration; see `adapt.stages.base.Base` for what is checked at once."""

    def dapt(self) -> Stage:
        """Domain-adaptive pre-training (Don't Stop Pretraining, section 3), from the files to the exported model."""
        domain, sources = self.domain()
        corpora = {"domain": domain}
        if self.config.evaluation.general_paths:
            corpora["general"] = self.prepared(general_corpus(self.config), f"{self.config.name}-general")
        training = self.trained(sources, self._replayed())
        # in the order they run: all that can fail on the data comes before the training
        stage = self.exported({**corpora, "training": training}, list(corpora))
        self._digests.save()
        return stage

    def similarity(self) -> Stage:
        """How near the domains of `corpus.sources` are (Don't Stop Pretraining, section 3.1).

        Raises:
            ConfigError: there is one source only, or another number of models.
            ModelError: a model has another tokenizer.
        """
        config, (_, corpora) = self.config, self.domain()
        models = config.similarity.models
        if len(corpora) < 2 or len(models) not in (0, len(corpora)):
            raise ConfigError(
                f"there are {len(corpora)} sources and {len(models)} models to compare",
                "list at least two corpus.sources, and in similarity.models a model for each or none",
            )
        evaluations = {
            f"model-{place:03d}": self._with_model(path).evaluated(f"model-{place:03d}", corpora, None)
            for place, path in enumerate(models)
        }
        self._digests.save()
        identity = {"max_documents": config.similarity.max_documents, "domains": list(corpora)}
        inputs = {**corpora, **evaluations}
        return Stage("similarity", config.name, identity, lambda folder, done: self._compare(folder, done), inputs)

    def evaluated(self, label: str, corpora: Mapping[str, Stage], training: Stage | None) -> Stage:
        """The model before training (None) or after it, on the held-out text of some corpora."""
        config = self.config
        identity = {
            "model": None if training else self._model_digest(),
            "evaluation": what(config.evaluation),
            "objective": what(config.objective),
        }
        inputs = {**corpora, **({"training": training} if training else {})}
        return Stage(
            "evaluate", f"{config.name}-{label}", identity, lambda folder, done: self._evaluate(folder, done), inputs
        )

    def exported(self, needed: Mapping[str, Stage], corpora: list[str]) -> Stage:
        """The deliverable: the trained model, its card, and what it gained and lost on held-out text."""
        texts = {name: needed[name] for name in corpora}
        inputs = {
            **needed,
            "before": self.evaluated("before", texts, None),
            "after": self.evaluated("after", texts, needed["training"]),
        }
        identity = {"bootstrap_samples": self.config.evaluation.bootstrap_samples}
        return Stage("export", self.config.name, identity, lambda folder, done: self._export(folder, done), inputs)

    def _with_model(self, path: str) -> "Catalogue":
        """The same for another model with the same tokenizer."""
        other = Catalogue(replace(self.config, model=replace(self.config.model, path=path)))
        ours, theirs = (each.pretrained.tokenizer for each in (self, other))
        if self._digests.of_all(tokenizer_files(ours)) != self._digests.of_all(tokenizer_files(theirs)):
            other_one = f"{path} has another tokenizer than {self.config.model.path}"
            raise ModelError(other_one, "compare models that share one")
        return other

    def _compare(self, folder: Path, inputs: Inputs) -> Outcome:
        from adapt.evaluate.domains import compare_domains

        corpora = {name: record.path for name, record in inputs.items() if record.stage == "prepare"}
        evaluations = [record.path for record in inputs.values() if record.stage == "evaluate"]
        most = self.config.similarity.max_documents
        return Outcome(compare_domains(corpora, evaluations, self.pretrained, most, folder))

    def _export(self, folder: Path, inputs: Inputs) -> Outcome:
        from adapt.evaluate.export import export

        return export(self.config, folder, inputs)

    def _evaluate(self, folder: Path, inputs: Inputs) -> Outcome:
        from adapt.evaluate.measure import Measurement, measure
        from adapt.runtime import connect

        connect(self.config.resources)
        model = self.pretrained
        if "training" in inputs:
            model = replace(model, model=inputs["training"].path / MODEL_FOLDER)
        corpora = {name: str(record.path) for name, record in inputs.items() if record.stage == "prepare"}
        return Outcome(measure(Measurement(self.config, model, corpora), folder))
