"""The interface between training and what is trained: rows in, corrupted rows and a summed loss out.

Also holds the objective of decoders, causal language modelling (Radford et al. 2018): predict each token from the
tokens before it in its document.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from adapt.model.packing.packed import CPU, Packed, sent
from adapt.model.sparse_prediction import loss_at, losses_at

_COLUMNS = "tokens", "lengths", "epochs", "rows", "starts"


@dataclass(frozen=True)
class Batch:
    """Rows as read from the corpus, on the host."""

    tokens: torch.Tensor
    """int64 [B, L]; positions from `lengths` on are filling."""
    lengths: torch.Tensor
    """int64 [B]."""
    epochs: torch.Tensor
    """int64 [B]: which pass over the corpus a row belongs to."""
    rows: torch.Tensor
    """int64 [B]: the rows' numbers in the corpus."""
    starts: torch.Tensor
    """bool [B, L]: where a document starts, or goes on from another row: always at the first position."""
    marks: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """bool [B, L] each: the columns that the objective asked of tokenization."""

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> "Batch":
        """Makes a batch from the arrays of `adapt.corpus.shard_batches.Feed`."""

        def read(name: str) -> torch.Tensor:
            return torch.from_numpy(columns[name].astype(bool if columns[name].dtype == bool else "int64"))

        return cls(
            **{name: read(name) for name in _COLUMNS},
            marks={name: read(name) for name in columns if name not in _COLUMNS},
        )

    @property
    def real(self) -> torch.Tensor:
        """bool [B, L]: True where there is text and not filling."""
        return torch.arange(self.tokens.shape[1]) < self.lengths[:, None]


@dataclass(frozen=True)
class Corrupted:
    """Rows as the model sees them, and what it is to predict.

    They stay on the host, where masks are drawn and boundaries found while the device still computes the step before.
    What a model takes is sent to its device.
    """

    input_ids: torch.Tensor
    """int64 [B, L]."""
    real: torch.Tensor
    """bool [B, L]: True where there is text and not filling."""
    starts: torch.Tensor
    """bool [B, L]: where a document starts."""
    positions: torch.Tensor
    """bool [B, L]: where a prediction is asked."""
    targets: torch.Tensor
    """int64 [T], T = positions.sum(): the tokens to predict, row by row."""
    device: torch.device = CPU
    """Where the model is."""
    rows: torch.Tensor | None = None
    """int64 [B], the rows' numbers in the corpus (`Batch.rows`); None where rows are of no corpus of the training, as
    those of a trial of its memory."""

    def bound_for(self, device: torch.device) -> "Corrupted":
        """The same rows for a model on another device."""
        return replace(self, device=device)

    def split(self, size: int) -> "list[Corrupted]":
        """The same rows in micro-batches of at most `size`."""
        if size >= len(self.input_ids):
            return [self]
        counts = [int(part.sum()) for part in self.positions.split(size)]
        parts = zip(
            self.input_ids.split(size),
            self.real.split(size),
            self.starts.split(size),
            self.positions.split(size),
            self.targets.split(counts),
            [self.device] * len(counts),
            [None] * len(counts) if self.rows is None else self.rows.split(size),
            strict=True,
        )
        return [Corrupted(*part) for part in parts]

    def packed(self) -> Packed:
        """The rows' text one after another, without filling, on the device."""
        return Packed.of(self.input_ids, self.real, self.starts).to(self.device)

    def asked(self) -> torch.Tensor:
        """int64 [T], on the device: where in the packed text predictions are asked."""
        return sent(self.positions[self.real].nonzero().flatten(), self.device)

    def answers(self) -> torch.Tensor:
        """int64 [T], `targets` on the device."""
        return sent(self.targets, self.device)


class Objective(ABC):
    """What the training loop needs of an objective."""

    def columns(self) -> tuple[str, ...]:
        """Columns beyond the tokens that tokenization must write (word starts, entities)."""
        return ()

    @abstractmethod
    def corrupt(self, batch: Batch) -> Corrupted:
        """Draws what is to be predicted, by (seed, epoch, row)."""

    def predictable(self, batch: Batch) -> torch.Tensor:
        """bool [B, L]: where a prediction may be asked; that is where it is, if nothing is drawn."""
        return self.corrupt(batch).positions

    def loss(self, model: torch.nn.Module, corrupted: Corrupted) -> torch.Tensor:
        """Summed cross entropy of the predictions [nats], float32 scalar, to be minimized."""
        return loss_at(model, corrupted.packed(), corrupted.asked(), corrupted.answers())

    def losses(self, model: torch.nn.Module, corrupted: Corrupted) -> torch.Tensor:
        """Cross entropy of each prediction [nats], float32 [T], for measurement."""
        return losses_at(model, corrupted.packed(), corrupted.asked(), corrupted.answers())


class CausalLanguageModelling(Objective):
    """Predicts the next token. Nothing is hidden, since the model sees to the left only.

    A document's first token is not predicted, since nothing comes before it; nor is a row's, whose context is in
    another row.
    """

    def corrupt(self, batch: Batch) -> Corrupted:
        """Asks for the next token wherever it belongs to the same document."""
        goes_on = batch.real & ~batch.starts
        positions = goes_on.roll(-1, dims=1)
        positions[:, -1] = False
        targets = batch.tokens.roll(-1, dims=1)[positions]
        return Corrupted(batch.tokens, batch.real, batch.starts, positions, targets)
