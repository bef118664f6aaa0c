"""Measures the held-out loss of an ensemble, whose prediction is the mean of its models' probabilities.

The loss of a token x under the mean of k models is -log(1/k sum_j p_j(x)). Each p_j sums to 1 over the vocabulary, and
so does their mean, so only the probabilities of the true tokens are needed. The models run on the device one after
another, and one number per prediction is kept. So memory does not grow with the vocabulary or the number of models.

This module does not import torch: the driver does not need it, and the task must hide GPUs before it imports torch.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adapt.config import Config
from adapt.evaluate.measure_model import LOSSES_FILE, call_on_device
from adapt.model.locate import Pretrained
from adapt.ray.runtime import hide_unreserved_gpus
from adapt.runner.files import write_atomically


@dataclass(frozen=True)
class EnsembleMeasurement:
    """The input of the measurement: the models of an ensemble, and the corpora on which it is measured."""

    config: Config
    models: tuple[Pretrained, ...]
    """The models, which have the same tokenizer."""
    corpora: dict[str, str]
    """Folders of prepared corpora, keyed by name."""


def measure_ensemble(measurement: EnsembleMeasurement, folder: Path) -> None:
    """Measures each corpus in a Ray task, and writes the losses of documents in the form of a stage `evaluate`.

    Raises:
        ModelError: a model has separate parameters for each domain.
    """
    losses = call_on_device(_measure, measurement.config.resources, folder, measurement)
    write_atomically(folder / LOSSES_FILE, json.dumps(losses))


class MeanProbability:
    """Adds up the probabilities that models give to the same true tokens, and returns the loss of their mean."""

    def __init__(self) -> None:
        self._logs: np.ndarray | None = None  # logarithm of the sum of the probabilities of each true token
        self._models = 0

    def add(self, losses: np.ndarray) -> None:
        """Adds a model.

        Args:
            losses: -log of the probability that the model gives to each true token [nats], [predictions].
        """
        own = -losses.astype(np.float64)
        self._logs = own if self._logs is None else np.logaddexp(self._logs, own)
        self._models += 1

    def losses(self) -> np.ndarray:
        """Returns the loss of each prediction under the mean of the models' probabilities [nats], [predictions]."""
        assert self._logs is not None
        mixed: np.ndarray = np.log(self._models) - self._logs
        return mixed


def _measure(measurement: EnsembleMeasurement) -> dict[str, dict[str, list[float]]]:
    """Measures the ensemble in the Ray task. Imports torch late, after Ray has hidden the GPUs of other tasks."""
    hide_unreserved_gpus()
    from adapt.evaluate.evaluation_task import measure_mean

    return measure_mean(measurement)
