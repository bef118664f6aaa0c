"""The loss of a model on texts that are no prepared corpus."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from adapt.config import Config
from adapt.evaluate.mlm_loss import SAMPLE_SEED, Heldout, heldout_losses
from adapt.objective.build import make


def loss_on(
    tokens: Sequence[np.ndarray],
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    config: Config,
    device: torch.device,
) -> float:
    """Mean held-out loss on some texts [nats a predicted token]; see `losses_on`."""
    losses, counts = losses_on(tokens, range(len(tokens)), model, tokenizer, config, device)
    return float(losses.sum() / max(counts.sum(), 1))


def losses_on(
    tokens: Sequence[np.ndarray],
    numbers: Sequence[int],
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    config: Config,
    device: torch.device,
) -> tuple[np.ndarray, np.ndarray]:
    """Summed held-out loss [nats] and number of predictions of each text, float64 and int64 [texts].

    Args:
        tokens: of each text, with special tokens.
        numbers: of the texts, from 0 to 2^43 - 1; a text's number decides its masks.
        model: a language model.
        tokenizer: its own.
        config: `evaluation` and `objective`. Of masking objectives, single tokens are masked: words, spans and
            entities need marks that only prepared text has.
        device: to compute on.
    """
    causal = config.objective.kind == "causal"
    objective = make(replace(config.objective, kind="causal" if causal else "mlm"), tokenizer, SAMPLE_SEED)
    sample = Heldout(list(numbers), list(tokens))
    return heldout_losses(model, objective, sample, config.evaluation, device)
