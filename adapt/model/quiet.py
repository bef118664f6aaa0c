"""Keeps transformers from writing to the user's terminal; what goes wrong is raised as an error instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR

from transformers.utils import logging


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' log lines and progress bars inside the block, and put back what was set before."""
    level = logging.get_verbosity()
    hook = logging.set_tqdm_hook(lambda factory, args, kwargs: logging.EmptyTqdm(*args, **kwargs))
    logging.set_verbosity(ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logging.set_tqdm_hook(hook)
