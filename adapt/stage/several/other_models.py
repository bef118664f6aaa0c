"""Finds and checks the models that a job reads in addition to its own: members of an ensemble, and teachers."""

from collections.abc import Mapping
from dataclasses import replace

from adapt.config import Config
from adapt.method.base import Method
from adapt.method.table import method_of
from adapt.model.architecture import check_sequence_length, try_unknown
from adapt.model.locate import tokenizer_files
from adapt.model.size import ModelSize, model_size
from adapt.model.start import Start
from adapt.runner.digest import Digests
from adapt.stage.context import Context, check_sides, located
from adapt.support.errors import ModelError

LARGER = 1.01
"""A student with more than this many times the parameters of a teacher counts as larger. Checkpoints of the same shape
may differ by some small tensors, such as a pooler."""


def models_named(config: Config) -> Mapping[str, str]:
    """Returns the paths of all models other than model.path that a configuration names, with the naming field.

    In a chain file, a path may be the name of a stage.
    """
    method = method_of(config)
    return {
        **{model.path: "comparison.models" for model in config.comparison.models},
        **dict.fromkeys(config.merge.models, "merge.models"),
        **dict.fromkeys(config.ensemble.models, "ensemble.models"),
        **dict.fromkeys(method.other_models, teachers_field(method)),
    }


def teachers_field(method: Method) -> str:
    """Returns the name of the field that lists the other models of a method, for messages."""
    return f"{method.kind}.teachers"


def same_tokens(one: Start, other: Start, digests: Digests) -> bool:
    """Returns whether two models have the same tokenizer, even if its files differ.

    Raises:
        ModelError: a tokenizer cannot be loaded, or does not belong to its model.
    """
    # compares the stages that make tokenizers, because the files of such a tokenizer may not exist yet
    if one.vocabulary or other.vocabulary:
        return one.vocabulary == other.vocabulary
    ours, theirs = (digests.of_all(tokenizer_files(each.pretrained.tokenizer)) for each in (one, other))
    if ours == theirs:
        return True
    from adapt.model.tokenizer import are_alike  # imported here, because it loads transformers

    return are_alike(one.pretrained, other.pretrained)


def other_model(context: Context, path: str, field: str) -> Start:
    """Returns a model with the tokenizer of the context's model, after all checks that need no weights.

    Args:
        context: context of the job.
        path: id or folder of the model, or the name of a stage of the same chain.
        field: field that names the model, for messages.

    Raises:
        ModelError: the model does not exist, has another tokenizer, does not suit the objective, or is too short.
    """
    config = context.config
    try:
        start = context.made.get(path) or located(replace(config.model, path=path), context.digests)
        check_sides(start, config)
        check_sequence_length(start.pretrained.model, config.evaluation.sequence_length, "evaluation.sequence_length")
    except ModelError as error:
        raise ModelError(f"{field}: {path}: {error.what}", error.fix) from error
    if not same_tokens(context.start, start, context.digests):
        raise ModelError(
            f"{field}: {path} has another tokenizer than model.path ({config.model.path}), so predictions of the two"
            " cannot be compared",
            "name models that share its tokenizer",
        )
    return start


def with_teachers(context: Context) -> tuple[Config, tuple[Start, ...]]:
    """Returns the teachers of the configured method, and the configuration with their folders in place of names.

    A model that another stage makes is replaced by the folder of the model that this stage starts from, which has the
    same shape. Estimates of memory read these folders.

    Raises:
        ModelError: a teacher does not exist, has another tokenizer, is smaller than the student, or has hidden states
            of another width, which are to be compared; or its head is not supported.
    """
    config, method = context.config, method_of(context.config)
    if not method.other_models:
        return config, ()
    field = teachers_field(method)
    starts = tuple(other_model(context, path, field) for path in method.other_models)
    student = model_size(context.start.pretrained.model)
    for path, start in zip(method.other_models, starts, strict=True):
        folder = start.pretrained.model
        check_sequence_length(folder, config.training.sequence_length, "training.sequence_length")
        teacher = model_size(folder)
        if student and teacher:
            _check_sizes(f"{field}: {path}", student, teacher, method.needs_equal_width)
        if method.scores_in_blocks:
            causal = config.objective.kind == "causal"
            try_unknown(folder, causal, config.model.trust_remote_code, in_blocks=method.scores_in_blocks)
    options = method.at_folders([start.pretrained.model for start in starts])
    return replace(config, method_options=options), starts


def _check_sizes(teacher: str, student: ModelSize, size: ModelSize, needs_equal_width: bool) -> None:
    if student.parameters > LARGER * size.parameters:
        raise ModelError(
            f"{teacher} has {size.parameters / 1e6:,.1f} M parameters, and its student, model.path, has"
            f" {student.parameters / 1e6:,.1f} M: a student that is larger than its teacher would learn to be worse"
            " than it could be",
            "name teachers of at least this size, or a smaller model.path",
        )
    if needs_equal_width and student.hidden != size.hidden:
        raise ModelError(
            f"{teacher} has hidden states of width {size.hidden}, and model.path of width {student.hidden}, so they"
            " cannot be compared",
            "set distill.of to logits, or name teachers of the same width",
        )
