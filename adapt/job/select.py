"""Selection: the documents of a pool that are worth training on (Don't Stop Pretraining, section 5.3, and later)."""

from adapt.config.kinds import Kind
from adapt.job.chosen import random_beside, select_documents
from adapt.job.job import Job
from adapt.job.text import general_text
from adapt.stage.context import Context
from adapt.stage.selecting.selection import JudgeSelection


def select_stages(context: Context) -> JudgeSelection:
    """The stages, in the order in which they run. In a chain, `from` may name a selection to take as many tokens as.

    Raises:
        ConfigError, DataError, ModelError: as `adapt.job.chosen.select_documents`.
    """
    general = general_text(context)
    chosen = select_documents(context, general, context.selected)
    return JudgeSelection(
        name=chosen.name,
        config=context.config,
        chosen=chosen,
        control=None if chosen.way == "random" else random_beside(context, chosen),
        target=chosen.target,
        start=context.start if context.config.select.measure_loss else None,
        tokens=chosen.tokens,
    )


JOB = Job(
    kind=Kind(
        "select",
        "Selects documents of a pool that are worth training on for a task (Don't Stop Pretraining, section 5.3).",
        corpus=False,
        defaults={"name": "select"},
    ),
    final=select_stages,
    texts=lambda judged: judged.chosen,
    takes_texts=True,
)
