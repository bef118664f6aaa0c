"""What a run found out, as its Ray task hands it back.

Imports neither torch nor transformers: the driver, which reads it, has no use for them, and they take six seconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.runner.files import write_atomically

PREDICTIONS_FILE = "predictions.jsonl"
DEV_PREDICTIONS_FILE = "dev_predictions.jsonl"
"""A file with one object for each example: id, label, predicted (class indices), probabilities, leaked."""
CURVE_FILE = "curve.json"
"""A file with one object for each epoch: epoch, loss, dev."""


@dataclass(frozen=True)
class RunFound:
    """Figures, and what they were computed from."""

    metrics: dict[str, Any]
    curve: list[dict[str, Any]]
    predictions: dict[str, list[dict[str, Any]]]
    """Predictions on dev and test, one line for each example."""

    def write(self, folder: Path) -> None:
        """Writes predictions and curve."""
        for name, file in (("test", PREDICTIONS_FILE), ("dev", DEV_PREDICTIONS_FILE)):
            lines = (json.dumps(line, ensure_ascii=False) for line in self.predictions[name])
            write_atomically(folder / file, "".join(f"{line}\n" for line in lines))
        write_atomically(folder / CURVE_FILE, json.dumps(self.curve))
