"""Creates results with default values, and finishes stages with such results without running the stages."""

import types
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from adapt.runner import Outcome, Stage

R = TypeVar("R")
PLAIN: dict[Any, Any] = {int: 0, float: 0.0, str: "", bool: False, type(None): None}


def made_up(kind: type[R], **given: Any) -> R:
    """Creates an instance of a result class.

    Fields that are not in `given` have their default, or else None, zero or an empty value.
    """
    hints = get_type_hints(kind)
    needed = [each.name for each in fields(kind) if each.name not in given and _is_required(each)]  # type: ignore[arg-type]
    return kind(**{name: _value(hints[name]) for name in needed}, **given)


def pretend(stage: Stage[R], **metrics: Any) -> Stage[R]:
    """Returns a stage with the same inputs and key that finishes without doing any work.

    Args:
        stage: the stage to imitate.
        metrics: values for fields of the same name, in the results of the stage and its inputs.
    """
    names = {each.name for each in fields(stage.result_type())}  # type: ignore[arg-type]
    result = made_up(stage.result_type(), **{name: value for name, value in metrics.items() if name in names})
    found: Stage[R] = object.__new__(_pretending(type(stage)))
    inputs = {name: pretend(needed, **metrics) for name, needed in stage.inputs.items()}
    vars(found).update(vars(stage) | {"inputs": inputs, "made_up": result})
    return found


@cache
def _pretending(kind: type[Any]) -> type[Any]:
    work = {
        "run": lambda self, folder, done: Outcome(self.made_up),
        "refuse_early": lambda self: None,
        "disk": lambda self, folder: (0, 0),
    }
    return type(kind.__name__, (kind,), work)


def _is_required(each: Field[Any]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _value(hint: Any) -> Any:
    origin = get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        return None if type(None) in get_args(hint) else _value(get_args(hint)[0])
    if is_dataclass(origin):
        return made_up(hint)
    if origin is Path:
        return Path()
    return PLAIN[origin] if origin in PLAIN else origin()
