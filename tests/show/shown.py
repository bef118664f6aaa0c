"""Prints results as a command does on a terminal."""

from typing import Any

from adapt.runner import Finished
from adapt.show.blocks import shown_by
from adapt.show.renderers import show_blocks


def show_result(finished: Finished[Any]) -> None:
    """Prints the result of a finished stage."""
    show_blocks(shown_by(finished.result, finished.record))
