"""Builds the merge job, which combines models without training."""

import glob
from collections.abc import Sequence
from pathlib import Path

from adapt.config.job_config import Kind
from adapt.job.job_run import Job
from adapt.merge.table import MERGERS, merging_of
from adapt.model.architecture import is_instruct, warn_of_instruct
from adapt.model.locate import looks_local
from adapt.model.start import Start
from adapt.stage.context import Context
from adapt.stage.merge_stage import Merge, check_alike, merged_from
from adapt.support.errors import ConfigError


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
