"""Stage `importance`: how much every unit of a model matters for what it knows, measured on some rows of a corpus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from adapt.config import Config, DasConfig
from adapt.corpus.order import permute
from adapt.corpus.tokens import TokenStream
from adapt.errors import DataError
from adapt.model.locate import Pretrained
from adapt.schema import SHARD_GLOB

if TYPE_CHECKING:  # torch is loaded in Ray tasks only once they have hidden the GPUs that are not theirs
    from torch import Tensor
    from transformers import PreTrainedModel

    from adapt.model.units import Kind

EPOCH = 2**32
"""Stands for the epoch wherever random numbers are drawn by epoch, so that rows and masks are not those of training."""
LEAST_PLASTICITY = 0.1
"""Below this mean of 1 - importance a layer hardly learns any more, and a warning says so."""


@dataclass(frozen=True)
class Measuring:
    """What is to be measured."""

    config: Config
    pretrained: Pretrained
    """The model."""
    corpora: tuple[str, ...]
    """Folders of the prepared text."""
    previous: str | None
    """Folder of the importance so far."""
    about: Literal["general", "domain"]
    """What the model knew before the first domain, as `das.general_importance` says, or the domain of the text."""

    @property
    def text(self) -> TokenStream:
        """What rows are taken from: all of it as one stream."""
        streams = (TokenStream.open(Path(folder), SHARD_GLOB) for folder in self.corpora)
        return TokenStream(tuple(shard for stream in streams for shard in stream.shards))

    def rows(self) -> np.ndarray:
        """The rows to measure on, int64: the same of a text, whatever it is about; none where nothing is measured.

        Raises:
            DataError: there is no text.
        """
        if self.about == "general" and self.config.das.general_importance == "random":
            return np.zeros(0, np.int64)
        rows = self.text.rows(self.config.training.sequence_length)
        if not rows:
            raise DataError(
                f"{', '.join(self.corpora)}: no text to measure importance on",
                "give this domain more text, or loosen corpus.cleaning",
            )
        wanted = min(self.config.das.importance_sequences, rows)
        return permute(np.arange(wanted), rows, self.config.seed, EPOCH)


def measure_importance(measuring: Measuring, folder: Path) -> dict[str, Any]:
    """Measures on the cluster this process is connected to, and writes `importance.safetensors` into `folder`.

    `das.plasticity_floor` is applied where importance is used, so that no domain's is made smaller again and again.

    Returns:
        `rows`, `groups` of rows and `tokens` measured on, `device_seconds`; `plasticity`, the mean of 1 - importance by
        kind of unit and layer, `plasticity_own` of this importance alone, and `least_plasticity`.

    Raises:
        DataError: the corpus is empty.
        ModelError: the units of the model are not known, the importance so far is another model's, or there is no
            dropout to measure with.
        TrainingError: gradients are not finite.
    """
    import torch

    from adapt.method.importance import Importance, joined, load_importance, save_importance
    from adapt.method.normalize import accumulate, normalize, normalize_tokens, plasticity

    das, rows, model = measuring.config.das, measuring.rows(), _skeleton(measuring.pretrained)
    previous = load_importance(Path(measuring.previous), model) if measuring.previous else None
    units, tokens, figures = _measured(measuring, rows) if len(rows) else _random(measuring, model)
    own, own_tokens = normalize(units, das.normalize), normalize_tokens(tokens) if tokens is not None else None
    known, known_tokens = (previous.units, previous.embedding) if previous else (None, None)
    together = accumulate(known, own) if known else own
    save_importance(Importance(together, joined(known_tokens, own_tokens), torch.from_numpy(rows)), model, folder)
    left = plasticity(together)
    return {
        "rows": len(rows),
        **figures,
        "plasticity": left,
        "plasticity_own": plasticity(own),
        "least_plasticity": min(min(layers) for layers in left.values()),
    }


def _skeleton(pretrained: Pretrained) -> PreTrainedModel:
    """The model's shape, without its weights."""
    import torch

    from adapt.model.load import load_config, model_class
    from adapt.model.quiet import quiet

    config = load_config(pretrained.model, pretrained.trust_remote_code)
    with quiet(), torch.device("meta"):
        model: PreTrainedModel = model_class(config).from_config(config, trust_remote_code=pretrained.trust_remote_code)
    return model


def _random(measuring: Measuring, model: Any) -> tuple[dict[Kind, Tensor], Tensor | None, dict[str, Any]]:
    """Sizes of units that mean nothing."""
    from adapt.method.normalize import random_sizes

    return random_sizes(model, measuring.config.seed), None, {"groups": 0, "tokens": 0, "device_seconds": 0.0}


def _measured(measuring: Measuring, rows: np.ndarray) -> tuple[dict[Kind, Tensor], Tensor | None, dict[str, Any]]:
    """Sizes of units and tokens over the rows."""
    from adapt.train.gradients import gradients_on_cluster

    sums, seconds = gradients_on_cluster(measuring, rows)
    return sums.means, sums.tokens, {"groups": sums.groups, "tokens": sums.text, "device_seconds": seconds}


def plasticity_under(das: DasConfig, measured: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """The plasticity of a record, as training has it under `das.plasticity_floor`; none where nothing is masked."""
    if das.soft_mask == "none":
        return {}
    return {kind: [max(each, das.plasticity_floor) for each in layers] for kind, layers in measured.items()}


def saturated(das: DasConfig, left: Mapping[str, list[float]]) -> Iterator[str]:
    """A warning for every layer and kind of unit that hardly learns any more; Adam undoes masks of gradients."""
    for kind, layers in left.items() if das.soft_mask == "update" else ():
        for number, each in enumerate(layers):
            if each < LEAST_PLASTICITY:
                yield (
                    f"layer {number}: {kind} units make {each:.1%} of a step on average (1 - importance), so the next "
                    "domains hardly change them; das.plasticity_floor keeps them free"
                )
