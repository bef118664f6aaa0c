"""Models are built by one thread at a time.

While transformers loads a model it switches torch's initialization off for the whole process, and ties weights by names
that it keeps there. A second thread would get a model that lacks weights, or one whose random weights were never drawn.
Stages that run side by side are threads of one process.
"""

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_BUILDING = RLock()


def one_at_a_time(build: Callable[P, T]) -> Callable[P, T]:
    """A function that builds models, made to wait until no other thread does."""

    @wraps(build)
    def waiting(*given: P.args, **named: P.kwargs) -> T:
        with _BUILDING:
            return build(*given, **named)

    return waiting
