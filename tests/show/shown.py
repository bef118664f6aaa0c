"""What a terminal shows of a result."""

from typing import Any

from adapt.runner import Finished
from adapt.show.blocks import shown_by
from adapt.show.terminal import show_blocks


def show_result(finished: Finished[Any]) -> None:
    """Prints what a finished stage shows of itself."""
    show_blocks(shown_by(finished.result, finished.record))
