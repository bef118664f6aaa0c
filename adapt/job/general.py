"""The stages that a method asks for before a model learns a domain, and after."""

from collections.abc import Mapping, Sequence
from typing import Any

from adapt.method.base import Domain
from adapt.method.table import check_method, method_of
from adapt.runner import Stage
from adapt.stage.context import Context
from adapt.stage.text.prepare import Prepared


def before_training(
    context: Context, texts: Sequence[Stage[Prepared]], general: Stage[Prepared] | None
) -> Mapping[str, Stage[Any]]:
    """The method's stages before a training.

    Args:
        context: whose model is going to learn.
        texts: what it learns first, one a source.
        general: general text that is replayed.

    Raises:
        ConfigError, ModelError: the method cannot be used here.
    """
    check_method(context.config, context.start.pretrained.model)
    return method_of(context.config).before(Domain(context.config, context.start, tuple(texts), {}, general))


def after_training(context: Context, text: Stage[Prepared], past: Mapping[str, Stage[Any]]) -> Mapping[str, Stage[Any]]:
    """The method's stages after a domain.

    Args:
        context: whose model has learnt it.
        text: the domain's.
        past: what the method knew before.
    """
    learnt = Domain(context.config, context.start, (text,), past)
    return {**past, **method_of(context.config).after_domain(learnt)}
