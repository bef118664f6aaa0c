"""Measures the pseudo-perplexity of masked language models, which masks one token at a time.

Pseudo-perplexity (Salazar et al., arXiv 1910.14659, equations 1 and 3) is

    PPPL = exp(-1/N sum_t log p(w_t | all other tokens))

over the N tokens of all documents. Each token is masked separately, which takes one forward pass per token.
Special tokens are not predicted. Documents longer than `evaluation.sequence_length` are split. For causal models, the
perplexity is measured instead.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adapt.config import Config, EvaluationConfig
from adapt.evaluate.evaluation_task import Ready, ready
from adapt.evaluate.losses import Heldout, heldout_losses
from adapt.evaluate.measure_model import call_on_device
from adapt.model.locate import Pretrained
from adapt.model.packing.packed import Packed, sent
from adapt.model.sparse_prediction import losses_at
from adapt.model.tokenizer import sees_both_sides
from adapt.objective.objective import CausalLanguageModelling


def perplexities(
    config: Config, pretrained: Pretrained, corpora: Mapping[str, Path], documents: int, folder: Path
) -> dict[str, float | None]:
    """Measures a model on the first held-out documents of some corpora, in a Ray task on the connected cluster.

    Args:
        config: the job's configuration, with batch sizes in `evaluation`.
        pretrained: the model.
        corpora: folders of prepared corpora, keyed by name.
        documents: largest number of held-out documents that are measured per corpus.
        folder: folder of the stage.

    Returns:
        The (pseudo-)perplexity on each corpus; None if a corpus has no held-out text.
    """
    folders = {name: str(prepared) for name, prepared in corpora.items()}
    return call_on_device(_all, config.resources, folder, config, pretrained, folders, documents)


def _all(config: Config, pretrained: Pretrained, corpora: Mapping[str, str], documents: int) -> dict[str, float | None]:
    causal = config.objective.kind == "causal"
    loaded = ready(pretrained, causal)
    evaluation = replace(config.evaluation, max_documents=documents)
    perplexities: dict[str, float | None] = {}
    for name, folder in corpora.items():
        losses, counts = _losses(loaded, Heldout.sample(Path(folder), evaluation), evaluation, causal)
        perplexities[name] = float(np.exp(losses.sum() / counts.sum())) if counts.sum() else None
    return perplexities


def _losses(
    loaded: Ready, sample: Heldout, evaluation: EvaluationConfig, causal: bool
) -> tuple[np.ndarray, np.ndarray]:
    if causal:
        return heldout_losses(loaded.model, CausalLanguageModelling(), sample, evaluation, loaded.device)
    return pseudo_losses(loaded.model, loaded.tokenizer, sample, evaluation, loaded.device)


def pseudo_losses(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sample: Heldout,
    evaluation: EvaluationConfig,
    device: torch.device,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns, for each document, the sum of -log p(token | other tokens) [nats] and the number of predicted tokens.

    Both arrays have one value per document, float64 and int64.
    """
    losses, counts = np.zeros(len(sample.tokens)), np.zeros(len(sample.tokens), np.int64)
    special = torch.tensor(tokenizer.all_special_ids)
    most = evaluation.sequence_length * evaluation.micro_batch
    shift = int(sees_both_sides(model.config))  # such a model predicts a token at the position before it
    model.to(device).eval()
    for index, tokens in enumerate(sample.tokens):
        for piece in torch.from_numpy(tokens.astype(np.int64)).split(evaluation.sequence_length):
            predicted = (~torch.isin(piece, special)).nonzero().flatten()
            predicted = predicted[predicted >= shift]
            counts[index] += len(predicted)
            for copies, masked, targets in _masked(piece, predicted, int(tokenizer.mask_token_id), most):
                starts = (torch.arange(len(piece)) == 0).expand_as(copies)
                packed = Packed.of(copies, torch.ones_like(masked), starts).to(device)
                positions = sent(masked.flatten().nonzero().flatten() - shift, device)
                values = losses_at(model, packed, positions, sent(targets, device))
                losses[index] += float(values.double().sum())
    return losses, counts


def _masked(piece: Tensor, positions: Tensor, mask: int, most: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yields groups of copies of a text, each copy with one token masked. A group has at most `most` tokens.

    Yields:
        The copies, int64 [C, L]; the masked positions, bool [C, L]; and the masked tokens, int64 [C].
    """
    for chosen in positions.split(max(1, most // len(piece))):
        if not len(chosen):
            continue
        masked = torch.zeros(len(chosen), len(piece), dtype=torch.bool)
        masked[torch.arange(len(chosen)), chosen] = True
        yield piece.expand(len(chosen), -1).masked_fill(masked, mask), masked, piece[chosen]
