"""Defines replaced-token detection: a generator fills masks, and the model learns to find tokens that were replaced.

L = L_MLM(generator) + lambda L_RTD(model) (ELECTRA, arXiv 2003.10555, section 2). L_MLM is the generator's mean cross
entropy over the masked tokens. L_RTD is the model's mean binary cross entropy over all tokens of the text, including
special tokens, as in the published code of ELECTRA and DeBERTa-v3. No gradient passes through the drawn tokens.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from adapt.config import ObjectiveConfig
from adapt.model.detector import Detector, load_detector, save_detector
from adapt.model.locate import Pretrained
from adapt.model.packing.packed import sent
from adapt.objective.masking import GENERATED, MaskedLanguageModelling
from adapt.objective.objective import Batch, Corrupted
from adapt.objective.table import RtdOptions


class ReplacedTokenDetection(MaskedLanguageModelling):
    """Masks single tokens for the generator, and lets the model find the tokens that the generator replaced.

    All chosen tokens are shown as the mask token, as published. One uniform random number per masked token selects the
    token from the generator's distribution. The random number depends only on (seed, epoch, row, position), so a
    resumed run draws the same tokens.
    """

    options: RtdOptions
    predicts_words = False

    def __init__(self, config: ObjectiveConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        super().__init__(config, tokenizer, seed)
        self._seen: list[tuple[np.ndarray, np.ndarray]] = []
        self._losses: list[Tensor] = []  # per micro-batch, the summed losses of generator and model
        self._counts = np.zeros(2)  # numbers of masked tokens and of all tokens, summed over these micro-batches

    def corrupt(self, batch: Batch) -> Corrupted:
        """Masks tokens, and draws the random numbers that select tokens from the generator's distributions."""
        corrupted = super().corrupt(batch)
        return replace(corrupted, draws=self.draw(GENERATED, batch)[corrupted.positions])

    def _shown(self, batch: Batch, positions: Tensor, heads: Tensor) -> Tensor:
        return torch.where(positions, self.mask_id, batch.tokens)

    @classmethod
    def load(
        cls,
        pretrained: Pretrained,
        options: Any = None,
        dropout: float | None = None,
        first: Pretrained | None = None,
    ) -> Detector:
        """Loads the model and its generator. A measurement uses the generator of the first model in the chain."""
        return load_detector(pretrained, options.generator_layers, options.embeddings, dropout, first)

    def save(
        self,
        start: Pretrained,
        state: dict[str, Tensor],
        tokenizer: PreTrainedTokenizerFast,
        folder: Path,
        resize: Callable[[PreTrainedConfig], None],
    ) -> None:
        """Writes the model with its head for replaced tokens, and the generator into its folder `generator`."""
        save_detector(start, state, tokenizer, folder, self.options.generator_layers, resize)

    def loss(self, model: torch.nn.Module, corrupted: Corrupted) -> Tensor:
        """Returns the loss [nats], float32 scalar, which the caller divides by the number of masked tokens T.

        The loss is the generator's summed loss plus lambda T / N times the model's summed loss, where N is the number
        of all tokens of the global batch. Divided by T, the second term is lambda times the model's mean loss.
        """
        masked, logits, replaced = _scored(model, corrupted)
        share = corrupted.share
        if share is None:
            share = len(corrupted.targets) / max(int(corrupted.real.sum()), 1)
        found = binary_cross_entropy_with_logits(logits.float(), replaced.float(), reduction="sum")
        self._losses.append(torch.stack((masked, found)).detach())
        self._counts += len(corrupted.targets), len(logits)
        return masked + self.options.weight * share * found

    def report(self) -> dict[str, float]:
        """Returns the generator's mean loss per masked token, and the model's mean loss per token [nats]."""
        if not self._losses:
            return {}
        sums, counts = torch.stack(self._losses).sum(0).tolist(), self._counts
        self._losses, self._counts = [], np.zeros(2)
        return {"generator_loss": sums[0] / counts[0], "discriminator_loss": sums[1] / counts[1]}

    def losses(self, model: torch.nn.Module, corrupted: Corrupted) -> Tensor:
        """Returns the binary cross entropy of each token [nats], float32 [N], and stores the scores for `figures`."""
        with torch.no_grad():
            _, logits, replaced = _scored(model, corrupted)
        self._seen.append((logits.float().cpu().numpy(), replaced.cpu().numpy()))
        return binary_cross_entropy_with_logits(logits.float(), replaced.float(), reduction="none")

    def measured(self, corrupted: Corrupted) -> Tensor:
        """Returns the positions of all tokens of the text, bool [B, L]."""
        return corrupted.real

    def figures(self) -> dict[str, float]:
        """Returns how well the model distinguished replaced from original tokens, in all rows since the last call.

        Returns:
            `replaced`: share of replaced tokens among all tokens. `recall`: share of the replaced tokens that the model
            marked, that is, gave a probability above 1/2. `precision`: share of replaced tokens among marked tokens.
            `auc`: probability that a replaced token has a higher score than an original token. A metric is left out if
            there are no tokens from which to compute it.
        """
        seen, self._seen = self._seen, []
        if not seen:
            return {}
        return detection(*(np.concatenate(parts) for parts in zip(*seen, strict=True)))


def _scored(model: torch.nn.Module, corrupted: Corrupted) -> tuple[Tensor, Tensor, Tensor]:
    """Runs the generator and the model. Returns the generator's loss, the model's scores, and the replaced tokens."""
    assert corrupted.draws is not None
    draws = sent(corrupted.draws, corrupted.device)
    scored: tuple[Tensor, Tensor, Tensor] = model(corrupted.packed(), corrupted.asked(), corrupted.answers(), draws)
    return scored


def detection(logits: np.ndarray, replaced: np.ndarray) -> dict[str, float]:
    """Computes the metrics that `ReplacedTokenDetection.figures` returns.

    Args:
        logits: score of each token, float [N].
        replaced: whether each token was replaced, bool [N].
    """
    marked, count, others = logits > 0, int(replaced.sum()), int((~replaced).sum())
    figures = {"replaced": count / max(len(replaced), 1)}
    if count:
        figures["recall"] = float(marked[replaced].mean())
    if marked.any():
        figures["precision"] = float(replaced[marked].mean())
    if count and others:
        _, place, tied = np.unique(logits, return_inverse=True, return_counts=True)
        ranks = (tied.cumsum() - (tied - 1) / 2)[place]  # tokens with equal scores share their mean rank
        figures["auc"] = float((ranks[replaced].sum() - count * (count + 1) / 2) / (count * others))
    return figures
