"""What to run first, on what evidence."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from adapt.advise.evidence import Evidence
from adapt.config import Config, CorpusConfig
from adapt.config.kinds import Kind
from adapt.corpus.files.sources import sources_of
from adapt.corpus.roles import general_corpus, pooled_corpus, selection_pool
from adapt.errors import ConfigError
from adapt.job.job import Job
from adapt.model.size import model_size
from adapt.runner import Finished
from adapt.stage.context import Context
from adapt.stage.evidence import Look
from adapt.stage.task import task_of
from adapt.stage.text.listing import Files, listed_files

if TYPE_CHECKING:
    from adapt.advise.advice import Advice


def advise_stages(context: Context) -> Look:
    """The evidence: of samples of the corpus, of general text and of pools, and of the tasks that there are.

    Raises:
        ConfigError: there is neither a corpus nor a task.
    """
    config = context.config
    tasks = {task.name: task_of(context, task) for task in (config.task, *config.tasks) if task.train}
    texts = {name: _files(context, name, corpora) for name, corpora in _corpora(config)}
    if not tasks and "corpus" not in texts:
        raise ConfigError("there is nothing to advise on", "name a corpus (corpus.paths) or a task (task.train)")
    return Look(config.name, config, context.start, context.tokens, texts, tasks)


def _corpora(config: Config) -> Iterator[tuple[str, list[tuple[str, CorpusConfig]]]]:
    """The corpora that there are, each as its sources."""
    if config.corpus.paths or config.corpus.sources or config.corpus.source != "files":
        yield "corpus", sources_of(config.corpus)
    if config.evaluation.general_paths:
        yield "general", [("", general_corpus(config))]
    if config.tapt.pool_paths:
        yield "pool", [("", pooled_corpus(config))]
    if config.select.pool_paths:
        yield "candidates", [("", selection_pool(config))]


def _files(context: Context, name: str, corpora: Sequence[tuple[str, CorpusConfig]]) -> tuple[Files, ...]:
    folder = f"{context.config.name}-{name}"
    return tuple(listed_files(context, corpus, folder, source) for source, corpus in corpora)


def advice(context: Context, finished: Finished[Evidence], arguments: Sequence[str]) -> "Advice":
    """What follows from the evidence.

    Args:
        context: of the job.
        finished: its last stage.
        arguments: of the command line, which the recommended commands repeat.
    """
    from adapt.advise.advice import recommend
    from adapt.advise.costs import costs
    from adapt.advise.findings import Case

    config, evidence = context.config, finished.result
    ahead = costs(config, evidence, model_size(context.start.pretrained.model), context.store)
    return recommend(Case(config, evidence, ahead), [argument for argument in arguments if argument != "--debug"])


JOB = Job(
    kind=Kind(
        "advise",
        "Says which recipe to run first for a corpus and tasks, at what cost, and why.",
        corpus=False,
        defaults={"name": "advise"},
    ),
    final=advise_stages,
    answer=advice,
)
