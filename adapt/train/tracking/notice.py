"""Words from a training's processes to the user, who sees none of their output: a file that the driver shows."""

import json
from contextlib import suppress
from pathlib import Path

from adapt.train.job import NOTICE_FILE


def tell(folder: Path, message: str) -> None:
    """Adds a line to the file of notices.

    Args:
        folder: the stage's.
        message: what the user is told.
    """
    with suppress(OSError), (folder / NOTICE_FILE).open("a") as file:  # the training matters more than a notice
        file.write(json.dumps({"said": message}) + "\n")
