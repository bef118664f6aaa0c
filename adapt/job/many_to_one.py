"""Jobs that turn several models into one model or one prediction: merge, ensemble and distil (arXiv 2509.14786)."""

import glob
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from adapt.config import NamedModel
from adapt.config.job_config import Kind
from adapt.job.job_run import Job
from adapt.job.job_text import domain_text, general_text
from adapt.job.training_jobs import dapt_stages
from adapt.merge.table import MERGERS, merging_of
from adapt.method.table import method_of
from adapt.model.architecture import is_instruct, warn_of_instruct
from adapt.model.locate import looks_local
from adapt.model.start import Start
from adapt.stage.context import Context
from adapt.stage.export_model import Export
from adapt.stage.merge_stage import Merge, check_alike, merged_from
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


def merge_stages(context: Context) -> Merge:
    """Builds the stages of the merge job. The models are checked before anything is read.

    Raises:
        ConfigError: fields of `merge` contradict each other.
        ModelError: a model does not exist, or its architecture or vocabulary differs from the base's.
    """
    config, base = context.config, context.start
    models = tuple(merged_from(context, path) for name in config.merge.models for path in _named(context, name))
    merging = merging_of(config, len(models))
    extended = _extended(base, models)
    if base.training is None:
        warn_of_instruct(base.pretrained)
    _check_residual(config.merge.kind, models)
    return Merge(config.name, config, base, models, merging, extended)


def _extended(base: Start, models: Sequence[Start]) -> int | None:
    """Returns the index of the first model whose vocabulary was extended, or None if there is none.

    Also checks that the models that exist already match the base model.
    """
    tokens = check_alike(base.pretrained, [model.pretrained for model in models])
    made = [place for place, model in enumerate(models) if model.vocabulary is not base.vocabulary]
    return min([*made, *(tokens.extended if tokens else ())], default=None)


def _named(context: Context, name: str) -> list[str]:
    """Expands a pattern to the matching folders, sorted by name. A name that is not a pattern is returned unchanged."""
    if name in context.made or not (glob.has_magic(name) or looks_local(name)):
        return [name]
    folder = Path(name).expanduser()
    if folder.is_dir():  # returns an existing folder unchanged, because its name may look like a pattern
        return [str(folder)]
    if folders := sorted(glob.glob(str(folder))):
        return folders
    what = "matches nothing" if glob.has_magic(name) else "does not exist"
    raise ConfigError(f"merge.models: {name} {what}", "correct the path, or the name of the stage")


def _check_residual(kind: str, models: Sequence[Start]) -> None:
    """Checks that the models were not swapped: if any model has a chat template, the instruct model must have one."""
    place = MERGERS.load(kind).dressed_as
    if place is None:
        return
    instruct = [model.training is None and is_instruct(model.pretrained.tokenizer) for model in models]
    if any(instruct) and not instruct[place]:
        raise ConfigError(
            "merge.models: with merge.kind residual the instruct model comes second, but the first one has a chat"
            " template, and the second has none",
            "name the adapted base first, then the instruct model",
        )


MERGE_JOB = Job(
    kind=Kind(
        "merge",
        "Makes models of others without training: between a base and a model, or of several models.",
        corpus=False,
        not_rtd="merges models without their generators",
        defaults={"name": "merge"},
    ),
    final=merge_stages,
    training=lambda stage: stage if len(stage.merging.shares) == 1 else None,
    tokens=lambda stage: stage.tokens,
)
