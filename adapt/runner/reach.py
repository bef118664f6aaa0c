"""The stages that some stages lead to."""

from collections.abc import Iterable
from typing import Any

from adapt.runner.stage import Stage


def everything(stages: Iterable[Stage[Any]]) -> list[Stage[Any]]:
    """Some stages and all stages that they read, directly or not, each once."""
    reached: dict[str, Stage[Any]] = {}
    waiting = list(stages)
    for stage in waiting:
        if stage.key not in reached:
            reached[stage.key] = stage
            waiting += stage.inputs.values()  # the loop goes on to these
    return list(reached.values())
