"""The catalogue: the jobs, each as its last stage."""

from pathlib import Path

from adapt.errors import ConfigError
from adapt.runner import Outcome, Stage
from adapt.runner.packages import deciding
from adapt.stages.base import Inputs
from adapt.stages.continual import Continual


class Catalogue(Continual):
    """Builds the stages of one configuration; see `adapt.stages.base.Base` for what is checked at once."""

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
        identity = {
            "max_documents": config.similarity.max_documents,
            "domains": list(corpora),
            **deciding("scikit-learn"),
        }
        inputs = {**corpora, **evaluations}
        return Stage("similarity", config.name, identity, lambda folder, done: self._compare(folder, done), inputs)

    def _compare(self, folder: Path, inputs: Inputs) -> Outcome:
        from adapt.evaluate.domains import compare_domains

        corpora = {name: record.path for name, record in inputs.items() if record.stage == "prepare"}
        evaluations = [record.path for record in inputs.values() if record.stage == "evaluate"]
        most = self.config.similarity.max_documents
        return Outcome(compare_domains(corpora, evaluations, self.pretrained, most, folder))
