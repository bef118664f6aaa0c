"""The stages that make vectors, for selections that read them.

The embedder learns, pool and target are embedded, and the vectors of the pool indexed. Selections of the same pool for
the same target share all of it.
"""

from collections.abc import Sequence

from adapt.runner import Stage
from adapt.select.table import SelectionStep
from adapt.stage.context import Context
from adapt.stage.selecting.embed import Embed
from adapt.stage.selecting.embedding import Embedding, PoolTexts, StageTexts
from adapt.stage.selecting.enough import CountEnough
from adapt.stage.selecting.index import BuildIndex
from adapt.stage.selecting.learn_embedder import LearnEmbedder
from adapt.stage.selecting.target import Target
from adapt.stage.selecting.vectors import VectorStages
from adapt.stage.text.listing import Files, held_out
from adapt.stage.text.prepare import Prepared
from adapt.stage.text.task_texts import TaskTexts

INDEX_GIB = 8.0
"""Memory that a machine may use for an index of kind `auto` [GiB]."""


def vector_stages(
    context: Context,
    steps: Sequence[SelectionStep],
    pool: Files,
    target: Target,
    unseen: TaskTexts | None,
    measured: tuple[Stage[Prepared], ...],
) -> VectorStages | None:
    """What some selections read; None where that is no vectors.

    Args:
        context: of the job.
        steps: the selections.
        pool: what is selected of.
        target: what documents should resemble.
        unseen: texts that must not be chosen, and so need no vectors.
        measured: further ones.

    Raises:
        ConfigError: there is no embedder of this name, or an option is wrong.
        ModelError: its model cannot be found.
    """
    asked = {whose for step in steps for whose in step.selection.vectors()}
    if not asked:
        return None
    config = context.config
    name, select, resources = (
        f"{config.name}-{config.select.embedder.rpartition(':')[2]}",
        config.select,
        config.resources,
    )
    embedding = Embedding.of(context, select.embedder, select.embedder_options)
    documents = PoolTexts(held_out(pool, 0.0), unseen, measured)
    wanted = StageTexts(target)
    learnt = LearnEmbedder(name, embedding, (documents, wanted), resources) if embedding.learns else None
    index = BuildIndex(
        name=f"{name}-pool",
        vectors=Embed(f"{name}-pool", embedding, learnt, documents, resources),
        index=select.index if "target" in asked else "flat",  # nobody searches it
        memory_gib=INDEX_GIB,
        queries=0,
        resources=resources,
    )
    return VectorStages(
        enough=CountEnough(f"{config.name}-pool", documents, select.per_example) if select.per_example else None,
        pool=index,
        target=Embed(f"{name}-target", embedding, learnt, wanted, resources) if "target" in asked else None,
    )
