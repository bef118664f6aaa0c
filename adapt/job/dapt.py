"""Domain-adaptive pre-training (Don't Stop Pretraining, section 3), from the files to the exported model."""

from adapt.config.kinds import DAPT
from adapt.job.chosen import has_corpus, selected_domain, selection_of_job
from adapt.job.general import before_training
from adapt.job.job import Job
from adapt.job.text import domain_text, general_text, replayed_text
from adapt.stage.context import Context
from adapt.stage.evaluate import Evaluate
from adapt.stage.export import Export
from adapt.stage.train import Train


def dapt_stages(context: Context) -> Export:
    """The stages, in the order in which they run: all that can fail on the data comes before the training."""
    general = general_text(context)
    chosen = selection_of_job(context, general) if context.selected or not has_corpus(context.config.corpus) else None
    text = selected_domain(context, chosen, general) if chosen else domain_text(context, general)
    replay = replayed_text(context, general)
    measured = {"domain": text.whole, **({"general": general} if general else {})}
    before = Evaluate.of(context, "before", measured)
    past = before_training(context, list(text.sources.values()), replay)
    training = Train.of(context, text.sources, replay, past, streamed=text.streamed)
    after = Evaluate.of(context.starting_from(training), "after", measured)
    return Export(
        name=context.config.name,
        config=context.config,
        domain=text.whole,
        general=general,
        text=None,
        training=training,
        before=before,
        after=after,
        is_transductive=False,
    )


JOB = Job(
    kind=DAPT,
    final=dapt_stages,
    training=lambda export: export.training,
    takes_texts=True,
)
