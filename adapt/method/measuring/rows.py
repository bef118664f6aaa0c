"""What stages that measure a model have in common: the text, a sample of its rows, and the model on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config
from adapt.errors import ConfigError, DataError
from adapt.model.locate import Pretrained
from adapt.schema import SHARD_GLOB

if TYPE_CHECKING:  # torch is loaded in Ray tasks only once they have hidden the GPUs that are not theirs
    import numpy as np
    import torch
    from transformers import PreTrainedModel

    from adapt.corpus.shards.tokens import TokenStream
    from adapt.objective.base import Batch
    from adapt.train.over_rows import Share

EPOCH = 2**32
"""Stands for the epoch wherever random numbers are drawn by epoch, so that rows and masks are not those of training."""


def check_prepared(config: Config, measured: str, fix: str) -> None:
    """Refuses text that is streamed, before a method measures on it.

    Args:
        config: of the job.
        measured: what is measured.
        fix: how to do without.

    Raises:
        ConfigError: the corpus is streamed.
    """
    if config.corpus.streaming:
        raise ConfigError(
            f"corpus.streaming is set, but {measured} is measured on prepared text",
            f"leave corpus.streaming out, or {fix}",
        )


def text_of(corpora: Sequence[str | Path]) -> TokenStream:
    """All prepared text of some folders as one stream."""
    from adapt.corpus.shards.tokens import TokenStream

    streams = (TokenStream.open(Path(folder), SHARD_GLOB) for folder in corpora)
    return TokenStream(tuple(shard for stream in streams for shard in stream.shards))


def sampled_rows(corpora: Sequence[str | Path], length: int, wanted: int, seed: int, measured: str) -> np.ndarray:
    """Rows to measure on, int64: the same of a text, whatever is measured.

    Args:
        corpora: folders of the prepared text.
        length: of a row [tokens].
        wanted: rows, as far as there are so many.
        seed: by which they are drawn.
        measured: what is, for the message.

    Raises:
        DataError: there is no text.
    """
    import numpy as np

    from adapt.corpus.batches.order import permute

    rows = text_of(corpora).rows(length)
    if not rows:
        raise DataError(
            f"{', '.join(map(str, corpora))}: no text to measure {measured} on",
            "give this domain more text, or loosen corpus.cleaning",
        )
    return permute(np.arange(min(wanted, rows)), rows, seed, EPOCH)


def batches_at(stream: TokenStream, share: Share, length: int, marks: Sequence[str]) -> Iterator[tuple[int, Batch]]:
    """Batches of rows by number, with the columns `marks` that an objective needs beside the tokens."""
    import numpy as np

    from adapt.objective.base import Batch

    for number, rows in share:
        columns: dict[str, Any] = stream.take(rows.tolist(), length, tuple(marks))
        yield number, Batch.of({**columns, "epochs": np.full(len(rows), EPOCH), "rows": rows})


def model_on(device: torch.device, config: Config, pretrained: Pretrained) -> PreTrainedModel:
    """The model, in evaluation mode, on a device, as trainings load it."""
    import torch

    from adapt.model.load import load_model
    from adapt.model.packing.dropout import use_quick_dropout

    causal, dropout = config.objective.kind == "causal", config.model.attention_dropout
    model = load_model(pretrained.model, causal, pretrained.trust_remote_code, dropout)
    if device.type == "cpu":
        use_quick_dropout(model)
    torch.nn.Module.to(model, device)
    model.eval()  # also the dropout that has just been put in
    return model
