"""How near domains are (Don't Stop Pretraining, section 3.1)."""

from adapt.config.kinds import Kind
from adapt.errors import ConfigError
from adapt.job.evaluate import with_model
from adapt.job.job import Job
from adapt.job.text import domain_text, general_text
from adapt.stage.context import Context
from adapt.stage.evaluate import Evaluate
from adapt.stage.text.similarity import Similarity


def similarity_stages(context: Context) -> Similarity:
    """The domains of `corpus.sources`, compared by their words, and by the losses of models where there are some.

    Raises:
        ConfigError: there is one source only, or another number of models.
        ModelError: a model has another tokenizer.
    """
    config, models = context.config, context.config.similarity.models
    corpora = domain_text(context, general_text(context)).sources
    if len(corpora) < 2 or len(models) not in (0, len(corpora)):
        raise ConfigError(
            f"there are {len(corpora)} sources and {len(models)} models to compare",
            "list at least two corpus.sources, and in similarity.models either no model or one for each source",
        )
    names = {f"model-{number:03d}": path for number, path in enumerate(models)}
    evaluations = {name: Evaluate.of(with_model(context, path), name, corpora) for name, path in names.items()}
    return Similarity(config.name, corpora, evaluations, context.tokens, config.similarity.max_documents)


JOB = Job(
    kind=Kind("similarity", "Measures how similar domains are (Don't Stop Pretraining, section 3.1)."),
    final=similarity_stages,
)
