"""Predictions of single masked tokens: pseudo-perplexity, and example sentences with one hidden word.

Pseudo-perplexity (Salazar et al., arXiv 1910.14659, equations 1 and 3) is

    PPPL = exp(-1/N sum_t log p(w_t | all other tokens))

over the N tokens of all documents. Each token is masked separately, which takes a pass of its document for every
token. Special tokens are not predicted. Documents longer than a row are measured in pieces. Causal models have
perplexity and next words instead.
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
from adapt.evaluate.losses import Heldout, heldout_losses
from adapt.evaluate.measure_model import Ready, call_on_device, ready
from adapt.model.locate import Pretrained
from adapt.model.packing.packed import Packed, sent
from adapt.model.sparse_prediction import losses_at, predict_at
from adapt.objective.masking import uniform
from adapt.objective.objective import CausalLanguageModelling


def perplexities(config: Config, pretrained: Pretrained, corpora: Mapping[str, Path]) -> dict[str, float | None]:
    """Measures a model on the first held-out documents of some corpora, on the cluster this process is connected to.

    Args:
        config: `comparison.pseudo_perplexity_documents`, and how much text passes the model at once.
        pretrained: the model.
        corpora: folders of prepared corpora by name.

    Returns:
        The (pseudo-)perplexity on each; None where it has no held-out text.
    """
    folders = {name: str(folder) for name, folder in corpora.items()}
    return call_on_device(_all, config.resources, config, pretrained, folders)


def _all(config: Config, pretrained: Pretrained, corpora: Mapping[str, str]) -> dict[str, float | None]:
    causal = config.objective.kind == "causal"
    loaded = ready(pretrained, causal)
    evaluation = replace(config.evaluation, max_documents=config.comparison.pseudo_perplexity_documents)
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
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    sample: Heldout,
    evaluation: EvaluationConfig,
    device: torch.device,
) -> tuple[np.ndarray, np.ndarray]:
    """Summed -log p(token | all others) [nats] and number of tokens of each document, float64 and int64 [documents]."""
    losses, counts = np.zeros(len(sample.tokens)), np.zeros(len(sample.tokens), np.int64)
    special = torch.tensor(tokenizer.all_special_ids)
    most = evaluation.sequence_length * evaluation.micro_batch
    model.to(device).eval()
    for index, tokens in enumerate(sample.tokens):
        for piece in torch.from_numpy(tokens.astype(np.int64)).split(evaluation.sequence_length):
            places = (~torch.isin(piece, special)).nonzero().flatten()
            counts[index] += len(places)
            for copies, masked, targets in _masked(piece, places, int(tokenizer.mask_token_id), most):
                starts = (torch.arange(len(piece)) == 0).expand_as(copies)
                packed = Packed.of(copies, torch.ones_like(masked), starts).to(device)
                positions = sent(masked.flatten().nonzero().flatten(), device)
                values = losses_at(model, packed, positions, sent(targets, device))
                losses[index] += float(values.double().sum())
    return losses, counts


def _masked(piece: Tensor, places: Tensor, mask: int, most: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Copies of a text, each with one token masked, so many at a time that they have at most `most` tokens together.

    Yields:
        The copies, int64 [C, L], where each is masked, bool [C, L], and what was there, int64 [C].
    """
    for chosen in places.split(max(1, most // len(piece))):
        if not len(chosen):
            continue
        masked = torch.zeros(len(chosen), len(piece), dtype=torch.bool)
        masked[torch.arange(len(chosen)), chosen] = True
        yield piece.expand(len(chosen), -1).masked_fill(masked, mask), masked, piece[chosen]


TOP = 3
SHORTEST, LONGEST = 10, 40
"""Documents of a length that reads well [tokens]."""
SHORTEST_PREFIX = 4
"""Tokens before a word that can be guessed from them."""


def filled_masks(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, sample: Heldout, count: int, device: torch.device
) -> list[dict[str, Any]]:
    """For some documents: the text with a word masked, the word, and the model's first guesses.

    Which documents and words depends on the sample only, so the lists of two models can be laid side by side.

    Returns:
        One dict each: text, answer, guesses as [word, probability].
    """
    examples = []
    for ids, position in _chosen(tokenizer, sample, count, first=1):
        masked = ids.clone()
        masked[position] = tokenizer.mask_token_id
        text = str(tokenizer.decode(masked[1:-1]))
        examples.append(_example(model.to(device), tokenizer, text, masked.to(device), position, int(ids[position])))
    return examples


def next_words(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, sample: Heldout, count: int, device: torch.device
) -> list[dict[str, Any]]:
    """Guesses of a causal model: the text up to a word, the word, and the model's first guesses."""
    examples = []
    for ids, position in _chosen(tokenizer, sample, count, first=SHORTEST_PREFIX):
        text = f"{tokenizer.decode(ids[:position], skip_special_tokens=True)} …"
        prefix = ids[:position].to(device)
        examples.append(_example(model.to(device), tokenizer, text, prefix, position - 1, int(ids[position])))
    return examples


def _chosen(
    tokenizer: PreTrainedTokenizerBase, sample: Heldout, count: int, first: int
) -> Iterator[tuple[Tensor, int]]:
    """Documents, int64 [tokens], and the position of a word in each, from position `first` on."""
    for number, tokens in zip(sample.documents, sample.tokens, strict=True):
        ids = torch.tensor(tokens.astype("int64"))
        if not SHORTEST <= len(ids) <= LONGEST:
            continue
        if count > 0 and (positions := [position for position in _whole_words(ids, tokenizer) if position >= first]):
            count -= 1
            yield ids, positions[int(uniform(0, 0, torch.tensor([0]), torch.tensor([number]), 1) * len(positions))]


def _word(tokenizer: PreTrainedTokenizerBase, ids: Any) -> str:
    return str(tokenizer.decode(ids)).strip()


def _whole_words(ids: Tensor, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The positions of words of four letters or more that are a single token."""
    words = [_word(tokenizer, [i]) for i in ids.tolist()]
    pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    starts = [not piece.startswith("##") for piece in pieces]
    spaced = [piece.startswith(("Ġ", "▁")) for piece in pieces]
    starts = spaced if any(spaced) else starts
    return [
        position
        for position in range(1, len(ids) - 1)
        if words[position].isalpha() and len(words[position]) >= 4 and starts[position] and starts[position + 1]
    ]


@torch.inference_mode()
def _example(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, text: str, ids: Tensor, position: int, answer: int
) -> dict[str, Any]:
    """What the model predicts at one position of a text."""
    logits = predict_at(model.eval(), Packed.single(ids), torch.tensor([position], device=ids.device))[0]
    probabilities, guesses = logits.float().softmax(-1).topk(TOP)
    return {
        "text": text,
        "answer": _word(tokenizer, [answer]),
        "guesses": [
            [_word(tokenizer, [guess]), round(probability, 4)]
            for guess, probability in zip(guesses.tolist(), probabilities.tolist(), strict=True)
        ],
    }
