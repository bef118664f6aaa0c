"""Builds rows from a few documents, with the columns that tokenization and packing write."""

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from adapt.corpus.encode_chunks import Marker
from adapt.corpus.entities import Span
from adapt.objective.objective import Batch

NAMES = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Wraps a tokenizer of the `tokenizers` library in a class of `transformers`, with the usual special tokens."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **NAMES)


def packed(
    tokenizer: Tokenizer, texts: list[str], length: int, entities: list[list[Span]] | None = None, copies: int = 1
) -> Batch:
    """Joins texts and splits them into rows of `length` tokens. Returns `copies` copies, with different row numbers."""
    marker = Marker(tokenizer)
    encodings = [tokenizer.encode(text) for text in texts]
    marks = [
        marker.marks(text, encoding, spans)
        for text, encoding, spans in zip(texts, encodings, entities or [[]] * len(texts), strict=True)
    ]
    columns = {name: np.concatenate([each[name] for each in marks]) for name in marks[0]}
    columns["tokens"] = np.concatenate([encoding.ids for encoding in encodings])
    columns["starts"] = np.concatenate([np.arange(len(encoding.ids)) == 0 for encoding in encodings])
    rows = -(-len(columns["tokens"]) // length)
    lengths = np.minimum(len(columns["tokens"]) - np.arange(rows) * length, length)
    filled = {
        name: np.tile(np.pad(values, (0, rows * length - len(values))).reshape(rows, length), (copies, 1))
        for name, values in columns.items()
    }
    filled["starts"][:, 0] = True
    numbers = np.arange(rows * copies)
    return Batch.of({**filled, "lengths": np.tile(lengths, copies), "epochs": numbers * 0, "rows": numbers})


def units_by_hand(starts: torch.Tensor, length: int) -> list[list[int]]:
    """Returns the positions of each unit of a row, given where units start and the row's length."""
    units: list[list[int]] = []
    for place, start in enumerate(starts[:length].tolist()):
        if start or place == 0:
            units.append([])
        units[-1].append(place)
    return units
