"""Which failures end a training at once, decided in Ray Train's controller as soon as the first rank has failed."""

import os
from pathlib import Path
from textwrap import shorten
from typing import Any

from ray.train import UserCallback

from adapt.train.failure import first_of, known
from adapt.train.training_run import tell

_WIDTH = 300
_SHUTDOWN_S = "5"


class EndAtOnce(UserCallback):
    """Ends a training whose failure is known, since trying again would end the same way.

    Any other failure is told to the user, and is Ray Train's, which starts the ranks again. It looks at all ranks
    several times a second, so those that wait for the one that failed, in a collective, are not waited for.

    Args:
        folder: the stage's, for messages.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raises the known error of any rank; Ray Train takes what a callback raises for the end."""
        os.environ["TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S"] = _SHUTDOWN_S  # Ray's half a minute is for healthy groups
        for error in worker_exceptions.values():
            if ours := known(error, self._folder):
                raise ours
        cause = shorten(first_of(worker_exceptions), _WIDTH)
        tell(self._folder, f"{cause}; all ranks begin again at the last checkpoint, if resources.max_failures allows")
