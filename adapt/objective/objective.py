"""Defines the interface between training and objectives. An objective corrupts rows, and computes a summed loss.

This module also has the objective of decoders, causal language modelling (Radford et al. 2018). It predicts each token
from the earlier tokens of the same document. `CausalDetour` is the same objective for encoders.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from adapt.model.load import load_model, save_model
from adapt.model.locate import Pretrained
from adapt.model.packing.isolation import see_only_earlier, set_causal
from adapt.model.packing.packed import CPU, Packed, sent
from adapt.model.sparse_prediction import loss_at, losses_at

_COLUMNS = "tokens", "lengths", "epochs", "rows", "starts"


@dataclass(frozen=True)
class Batch:
    """Rows as read from the corpus, on the host."""

    tokens: torch.Tensor
    """Token ids, int64 [B, L]. In row i, positions from `lengths[i]` on are padding."""
    lengths: torch.Tensor
    """Number of text tokens in each row, int64 [B]."""
    epochs: torch.Tensor
    """Epoch of each row, that is, index of the pass over the corpus, int64 [B]."""
    rows: torch.Tensor
    """Number of each row in the corpus, int64 [B]."""
    starts: torch.Tensor
    """Whether a document starts at each position, bool [B, L]. The first position of every row is True too."""
    marks: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Columns that the objective requested from tokenization (`Objective.columns`), keyed by name, bool [B, L] each."""

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> "Batch":
        """Creates a batch from the arrays of `adapt.corpus.shard_batches.Feed`, keyed by column."""

        def read(name: str) -> torch.Tensor:
            return torch.from_numpy(columns[name].astype(bool if columns[name].dtype == bool else "int64"))

        return cls(
            **{name: read(name) for name in _COLUMNS},
            marks={name: read(name) for name in columns if name not in _COLUMNS},
        )

    @property
    def real(self) -> torch.Tensor:
        """bool [B, L]: True at text, False at padding."""
        return torch.arange(self.tokens.shape[1]) < self.lengths[:, None]


@dataclass(frozen=True)
class Corrupted:
    """Rows as the model sees them, and the tokens to predict.

    The tensors stay on the host, which draws masks and finds boundaries while the device still computes the previous
    step. Only the model's inputs are sent to the device.
    """

    input_ids: torch.Tensor
    """Token ids as the model sees them, int64 [B, L]."""
    real: torch.Tensor
    """bool [B, L]: True at text, False at padding."""
    starts: torch.Tensor
    """Whether a document starts at each position, bool [B, L]."""
    positions: torch.Tensor
    """Whether the token at each position is predicted, bool [B, L]."""
    targets: torch.Tensor
    """The T = positions.sum() tokens to predict, row by row, int64 [T]."""
    device: torch.device = CPU
    """Device of the model, to which its inputs are sent."""
    rows: torch.Tensor | None = None
    """Number of each row in the corpus, int64 [B] (`Batch.rows`).

    None for rows that are not from the training corpus, such as rows of a trial pass that measures memory.
    """
    draws: torch.Tensor | None = None
    """A uniform random number in [0, 1) for each prediction, float64 [T]; None for objectives that draw no tokens."""
    kept: torch.Tensor | None = None
    """Whether the encoder sees each token, bool [B, L]; None for objectives without a decoder."""
    share: float | None = None
    """Number of predictions divided by number of tokens, both in the whole global batch. If None, both numbers are from
    these rows only."""

    def bound_for(self, device: torch.device) -> "Corrupted":
        """Returns the same rows for a model on another device."""
        return replace(self, device=device)

    def split(self, size: int) -> "list[Corrupted]":
        """Splits the rows into micro-batches of at most `size` rows."""
        if size >= len(self.input_ids):
            return [self]
        counts = [int(part.sum()) for part in self.positions.split(size)]
        columns = {
            name: tensor.split(counts if name in ("targets", "draws") else size)
            for name, tensor in vars(self).items()
            if isinstance(tensor, torch.Tensor)
        }
        return [replace(self, **dict(zip(columns, part, strict=True))) for part in zip(*columns.values(), strict=True)]

    def packed(self) -> Packed:
        """Returns the rows' text as one sequence without padding, on the device."""
        return Packed.of(self.input_ids, self.real, self.starts).to(self.device)

    def asked(self) -> torch.Tensor:
        """Returns the positions of the predictions in the packed text, int64 [T], on the device."""
        return sent(self.positions[self.real].nonzero().flatten(), self.device)

    def answers(self) -> torch.Tensor:
        """Returns the tokens to predict (`targets`) on the device, int64 [T]."""
        return sent(self.targets, self.device)


class Objective(ABC):
    """Base class of objectives: chooses the predictions and computes their loss."""

    options: Any = None
    """Options of the objective, from the configuration section with its name; None if it has no options."""
    is_causal: ClassVar[bool] = False
    """Whether the model is a decoder."""
    predicts_words: ClassVar[bool] = True
    """Whether the model predicts tokens. Only then can bits per byte and example predictions be reported."""

    def read(self, folder: Path) -> None:  # noqa: B027 (most objectives read nothing)
        """Before training, reads the result of a stage that the objective depends on (`adapt.stage.weigh_words`)."""

    def prepare(self, model: torch.nn.Module) -> None:  # noqa: B027 (most objectives change nothing)
        """Changes the model before the engine wraps it: attaches modules that only training uses, or changes attention.

        Raises:
            ModelError: the model cannot be used with this objective.
        """

    def exported(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the weights of the model without the modules that `prepare` attached."""
        return state

    @contextmanager
    def measurable(self, model: torch.nn.Module) -> Iterator[None]:
        """Returns a context manager in which a model in training acts like the exported model, for held-out losses."""
        yield

    def columns(self) -> tuple[str, ...]:
        """Returns the names of columns that tokenization must write in addition to tokens, such as word starts."""
        return ()

    @classmethod
    def load(
        cls,
        pretrained: Pretrained,
        options: Any = None,
        dropout: float | None = None,
        first: Pretrained | None = None,
    ) -> torch.nn.Module:
        """Loads the model that this objective trains, on the CPU, in evaluation mode.

        Args:
            pretrained: the model.
            options: options of the objective.
            dropout: dropout of the attention weights; None keeps the model's value.
            first: the first model of the chain of stages, if the model is loaded for a measurement. Some objectives use
                this first model's generator.
        """
        return load_model(pretrained.model, cls.is_causal, pretrained.trust_remote_code, dropout)

    def save(
        self,
        start: Pretrained,
        state: dict[str, torch.Tensor],
        tokenizer: PreTrainedTokenizerFast,
        folder: Path,
        resize: Callable[[PreTrainedConfig], None],
    ) -> None:
        """Writes a trained model as a Hugging Face folder.

        Args:
            start: the model that the training started from.
            state: all weights of the trained model.
            tokenizer: the model's tokenizer.
            folder: folder to write. The caller must make this atomic.
            resize: function that changes the model's config in place to match the trained model.
        """
        save_model(start.model, state, tokenizer, folder, start.trust_remote_code, resize=resize)

    @abstractmethod
    def corrupt(self, batch: Batch) -> Corrupted:
        """Chooses the tokens to predict and corrupts the rows. Draws depend only on (seed, epoch, row)."""

    def predictable(self, batch: Batch) -> torch.Tensor:
        """Returns the positions at which a prediction is possible, bool [B, L].

        By default, these are the positions that `corrupt` chooses.
        """
        return self.corrupt(batch).positions

    def loss(self, model: torch.nn.Module, corrupted: Corrupted) -> torch.Tensor:
        """Returns the summed cross entropy of the predictions [nats], float32 scalar, to be minimized."""
        return loss_at(model, corrupted.packed(), corrupted.asked(), corrupted.answers())

    def losses(self, model: torch.nn.Module, corrupted: Corrupted) -> torch.Tensor:
        """Returns the cross entropy of each prediction [nats], float32 [T], for measurement."""
        return losses_at(model, corrupted.packed(), corrupted.asked(), corrupted.answers())

    def measured(self, corrupted: Corrupted) -> torch.Tensor:
        """Returns the positions to which the values of `losses` belong, bool [B, L]."""
        return corrupted.positions

    def report(self) -> dict[str, float]:
        """Returns metrics for the training log, over this rank's part of all steps since the last call."""
        return {}

    def figures(self) -> dict[str, float]:
        """Returns metrics other than the loss, keyed by name, over all rows passed to `losses` since the last call."""
        return {}


class CausalLanguageModelling(Objective):
    """Predicts each next token. Nothing is masked, since the model sees only earlier tokens.

    The first token of a document is not predicted, since no token comes before it. The first token of a row is not
    predicted either, since its context is in another row.
    """

    is_causal = True

    def corrupt(self, batch: Batch) -> Corrupted:
        """Predicts, at each position, the next token of the same document and row."""
        goes_on = batch.real & ~batch.starts
        positions = goes_on.roll(-1, dims=1)
        positions[:, -1] = False
        targets = batch.tokens.roll(-1, dims=1)[positions]
        return Corrupted(batch.tokens, batch.real, batch.starts, positions, targets)


class CausalDetour(CausalLanguageModelling):
    """Predicts each next token with an encoder, whose attention is causal during the training.

    The masked-LM head predicts the next token at every position. This is the first of two phases of a causal detour. In
    the second phase, the model must be trained by masked language modelling with the encoder's own attention (Touchent
    and de la Clergerie, arXiv 2605.12438).
    """

    is_causal = False

    def prepare(self, model: torch.nn.Module) -> None:
        """Makes the attention causal. The saved model has the encoder's own attention again."""
        see_only_earlier(model)

    @contextmanager
    def measurable(self, model: torch.nn.Module) -> Iterator[None]:
        """Returns a context manager in which the encoder has its own attention, which is not causal."""
        set_causal(model, False)
        try:
            yield
        finally:
            set_causal(model, True)
