"""Lets the clock of our code jump: its `time.time` is wrong by the number of seconds in a control file.

A process imports this module before its work (`FORKS_IMPORT`, see `tests.forks.process`). Then modules of `adapt` see
a modified `time` module. The environment variable `JUMPING_CLOCK` names the control file. Without this file, the clock
is right. Ray, other libraries and file times use the right clock, as if the storage were on another machine.
"""

import os
import sys
import time
from types import ModuleType
from typing import Any

VARIABLE = "JUMPING_CLOCK"
_LOOK_S = 0.05


class Clock(ModuleType):
    """A replacement for the module `time`, whose clock is wrong by the number of seconds in a file.

    Args:
        control: path of the file.
    """

    def __init__(self, control: str) -> None:
        super().__init__("time")
        self._control, self._looked, self._offset = control, 0.0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        """Returns the time [s since 1970]."""
        if time.monotonic() - self._looked > _LOOK_S:
            self._looked = time.monotonic()
            try:
                with open(self._control) as file:
                    self._offset = float(file.read())
            except FileNotFoundError:
                self._offset = 0.0
        return time.time() + self._offset


def replace_clocks(clock: Clock) -> int:
    """Gives the clock to all loaded modules of `adapt`, and returns their number."""
    ours = [each for name, each in sys.modules.items() if name.startswith("adapt.") and vars(each).get("time") is time]
    for module in ours:
        module.time = clock  # type: ignore[attr-defined]
    return len(ours)


if VARIABLE in os.environ:
    replace_clocks(Clock(os.environ[VARIABLE]))
