"""Jobs that turn several models into one prediction or one model: ensemble and distil (arXiv 2509.14786)."""

from dataclasses import replace

from adapt.config import NamedModel
from adapt.config.job_config import Kind
from adapt.job.job_run import Job
from adapt.job.job_text import domain_text, general_text
from adapt.job.training_jobs import dapt_stages
from adapt.method.table import method_of
from adapt.stage.context import Context
from adapt.stage.export_model import Export
from adapt.stage.model_evaluation import Evaluate
from adapt.stage.several.ensemble import ENSEMBLE, MeasureEnsemble
from adapt.stage.several.other_models import other_model, teachers_field
from adapt.support.errors import ConfigError

BASE = "base"
"""Name of model.path among the compared models."""


def ensemble_stages(context: Context) -> MeasureEnsemble:
    """Builds the measurement of `ensemble.models`, with `comparison.models` and model.path to compare with.

    Raises:
        ConfigError: there are fewer than two members, or two compared models have the same name.
        ModelError: a model cannot be measured, or has another tokenizer than model.path.
    """
    config = context.config
    named = [NamedModel(path, path) for path in config.ensemble.models]
    if len(named) < 2:
        raise ConfigError(
            f"ensemble.models names {len(named)} model{'' if len(named) == 1 else 's'}, and an ensemble needs two or"
            " more",
            "name models of the same training with other seeds, such as [runs/export/a, runs/export/b]",
        )
    others = [*config.comparison.models, NamedModel(BASE, config.model.path)]
    labels = [model.name for model in (*named, *others)]
    if repeated := next((name for name in [*labels, ENSEMBLE] if [*labels, ENSEMBLE].count(name) > 1), None):
        raise ConfigError(
            f"two models of the comparison are called {repeated}", "name each model once, and under a name of its own"
        )
    starts = [other_model(context, model.path, "ensemble.models") for model in named]
    starts += [other_model(context, model.path, "comparison.models") for model in config.comparison.models]
    starts.append(context.start)
    general = general_text(context)
    corpora = {"domain": domain_text(context, general).whole, **({"general": general} if general else {})}
    singles = [
        Evaluate.of(replace(context, start=start), f"model-{number:03d}", corpora)
        for number, start in enumerate(starts)
    ]
    members, rest = tuple(starts[: len(named)]), tuple(starts[len(named) :])
    return MeasureEnsemble(config.name, config, members, tuple(labels), rest, tuple(singles), corpora)


ENSEMBLE_JOB = Job(
    kind=Kind(
        "ensemble",
        "Measures the mean of several models' predictions (arXiv 2509.14786), next to each of them.",
        not_rtd="averages predictions of words",
        defaults={"name": "ensemble"},
    ),
    final=ensemble_stages,
)


def distil_stages(context: Context) -> Export:
    """Builds a DAPT whose model learns the mean of its teachers' predictions on the domain's text.

    Raises:
        ConfigError: no teachers are named.
        ModelError: a teacher cannot be used (`adapt.stage.several.other_models.with_teachers`).
    """
    method = method_of(context.config)
    if not method.other_models:
        raise ConfigError(
            f"{teachers_field(method)} names no teacher to learn from",
            "name one or more adapted models: --distill.teachers '[runs/export/a, runs/export/b]'",
        )
    return dapt_stages(context)


DISTIL_JOB = Job(
    kind=Kind(
        "distil",
        "Makes one model of several: a student that learns their mean prediction on a domain (arXiv 2509.14786).",
        selects=True,
        not_rtd="compares predictions of words",
        defaults={"name": "distil", "method.kind": "distill"},
    ),
    final=distil_stages,
    training=lambda export: export.training,
    takes_texts=True,
)
