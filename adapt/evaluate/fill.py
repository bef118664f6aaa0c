"""Examples for the eye: a held-out sentence with one word masked, and what the model would write there."""

from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from adapt.evaluate.mlm_loss import Heldout
from adapt.model.head import predict_at
from adapt.objective.noise import uniform

TOP = 3
SHORTEST, LONGEST = 10, 40
"""Documents of a length that reads well [tokens]."""


def filled_masks(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, sample: Heldout, count: int, device: torch.device
) -> list[dict[str, Any]]:
    """For some documents: the text with a word masked, the word, and the model's first guesses.

    Which documents and words depends on the sample only, so the lists of two models can be laid side by side.

    Returns:
        One dict each: text, answer, guesses as [word, probability].
    """
    examples: list[dict[str, Any]] = []
    for number, tokens in zip(sample.documents, sample.tokens, strict=True):
        if len(examples) == count:
            break
        ids = torch.tensor(tokens.astype("int64"))
        if SHORTEST <= len(ids) <= LONGEST and (places := _whole_words(ids, tokenizer)):
            chosen = places[int(uniform(0, 0, torch.tensor([0]), torch.tensor([number]), 1) * len(places))]
            examples.append(_example(model.to(device), tokenizer, ids.to(device), chosen))
    return examples


def _word(tokenizer: PreTrainedTokenizerBase, ids: Any) -> str:
    return str(tokenizer.decode(ids)).strip()


def _whole_words(ids: torch.Tensor, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Places of words of four letters or more that are a single token."""
    words = [_word(tokenizer, [i]) for i in ids.tolist()]
    pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    starts = [not piece.startswith("##") for piece in pieces]
    spaced = [piece.startswith(("Ġ", "▁")) for piece in pieces]
    starts = spaced if any(spaced) else starts
    return [
        place
        for place in range(1, len(ids) - 1)
        if words[place].isalpha() and len(words[place]) >= 4 and starts[place] and starts[place + 1]
    ]


@torch.inference_mode()
def _example(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, ids: torch.Tensor, place: int
) -> dict[str, Any]:
    masked = ids.clone()
    masked[place] = tokenizer.mask_token_id
    positions = torch.zeros_like(ids, dtype=torch.bool)
    positions[place] = True
    logits = predict_at(model.eval(), masked[None], torch.ones_like(positions)[None], positions[None])[0]
    probabilities, guesses = logits.float().softmax(-1).topk(TOP)
    return {
        "text": tokenizer.decode(masked[1:-1]),
        "answer": _word(tokenizer, ids[place : place + 1]),
        "guesses": [
            [_word(tokenizer, [guess]), round(probability, 4)]
            for guess, probability in zip(guesses.tolist(), probabilities.tolist(), strict=True)
        ],
    }
