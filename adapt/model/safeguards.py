"""Silences transformers, lets one thread at a time build a model, and rejects weights that are nan or infinite.

- `quiet` keeps transformers from writing to the terminal. Problems are raised as errors instead.
- `one_at_a_time` lets one thread at a time build a model. While transformers loads a model, it disables torch's
  initialization and stores names of tied weights for the whole process. A second thread would get a model with missing
  or uninitialized weights. There may be several threads, because stages run in parallel as threads of one process.
- `check_finite` raises an error for weights that are nan or infinite. A single such weight makes every loss nan.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from logging import ERROR
from threading import RLock
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from transformers.utils import logging

from adapt.support.errors import ModelError


@contextmanager
def quiet() -> Iterator[None]:
    """Returns a context manager that silences transformers' log lines and progress bars."""
    level = logging.get_verbosity()
    hook = logging.set_tqdm_hook(lambda factory, args, kwargs: logging.EmptyTqdm(*args, **kwargs))
    logging.set_verbosity(ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logging.set_tqdm_hook(hook)


P = ParamSpec("P")
T = TypeVar("T")

_BUILDING = RLock()


def one_at_a_time(build: Callable[P, T]) -> Callable[P, T]:
    """Decorates a function that builds models, so that it waits until no other thread runs such a function."""

    @wraps(build)
    def waiting(*arguments: P.args, **named: P.kwargs) -> T:
        with _BUILDING:
            return build(*arguments, **named)

    return waiting


AGAIN = "copy or download the model again; if you trained it, use an earlier checkpoint or a lower learning rate"


def check_finite(tensor: Tensor, name: str, of: str, fix: str = AGAIN) -> None:
    """Checks that no value of a tensor is nan or infinite. Reads the tensor once, without a copy.

    Args:
        tensor: a tensor of any type. Integers are always finite.
        name: name of the tensor.
        of: the model or file that the tensor belongs to, for the message.
        fix: advice for the user.

    Raises:
        ModelError: some values are not finite. The error names the tensor and gives the number of these values.
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return
    ends = torch.stack(torch.aminmax(tensor.detach()))  # minimum and maximum are both nan if any value is nan
    if ends.isfinite().all():
        return
    wrong, count = {"nan": tensor.isnan().sum(), "infinite": tensor.isinf().sum()}, tensor.numel()
    numbers = " and ".join(f"{int(number):,} {kind}" for kind, number in wrong.items() if number)
    raise ModelError(f"{of}: the tensor {name} has values that are not finite: {numbers} of {count:,}", fix)
