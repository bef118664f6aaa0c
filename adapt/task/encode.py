"""Examples as a model reads them: tokens, segments, and numbers for labels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from adapt.model.tokenize.ragged import IDS
from adapt.task.data import IGNORED
from adapt.task.read import Example

if TYPE_CHECKING:
    from adapt.model.tokenize.quick import QuickTokenizer

_BATCH = 1000
"""So many examples are tokenized at once. The tokenizer's own notes on a text are many times its size."""


@dataclass
class Encoded:
    """Examples in order; see `adapt.task.data.Split`."""

    tokens: list[np.ndarray] = field(default_factory=list)
    segments: list[np.ndarray] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    vanished_words: int = 0
    """For `tokens`, words that no token begins in, such as single control characters. They get no label and no score.
    """


def encode(
    examples: Sequence[Example],
    kind: str,
    classes: Sequence[str],
    tokenizer: Any,
    quick: "QuickTokenizer | None" = None,
) -> Encoded:
    """Tokenizes examples, uncut.

    Pairs are joined as the tokenizer joins them. Segments are its `token_type_ids`, where the model has any, else 0.
    Where a text has no token at all, its only one is the end of text (or the padding, or else id 0), so that every
    example can pass a model.

    The words of `tokens` are tokenized as running text, with a blank between, because that is what the model was
    trained on; handed over one by one, they would lose the blank that byte-level tokenizers begin a word with. A word's
    label stands at the first token that ends inside of it.

    Args:
        examples: of a split.
        kind: of the task.
        classes: of the task; a label becomes its index.
        tokenizer: fast, as `adapt.model.literal.load_text_tokenizer` gives it.
        quick: the same, made quick, for single texts.
    """
    encoded = Encoded()
    index = {name: number for number, name in enumerate(classes)}
    only_token = next((number for number in (tokenizer.eos_token_id, tokenizer.pad_token_id) if number is not None), 0)
    is_single = kind != "tokens" and all(example.pair is None for example in examples)
    if quick and is_single and not any(tokenizer("a").get("token_type_ids", ())):
        tokenized = _quickly(examples, quick)
    else:
        tokenized = _tokenized(examples, kind, tokenizer)
    for example, ids, segments, offsets in tokenized:
        encoded.tokens.append(np.array(ids or [only_token], np.int32))
        encoded.segments.append(np.array(segments if ids else [0], np.int8))
        labels = [index[str(label)] for label in example.labels]
        if kind == "tokens":
            begun = _first_tokens(example.words, offsets)
            encoded.labels.append([IGNORED if word is None else labels[word] for word in begun] or [IGNORED])
            encoded.vanished_words += len(labels) - sum(word is not None for word in begun)
        else:
            encoded.labels.append(labels if kind == "multi_label" else labels[0])
    return encoded


def _quickly(
    examples: Sequence[Example], quick: "QuickTokenizer"
) -> Iterator[tuple[Example, list[int], list[int], list[tuple[int, int]]]]:
    """Does what `_tokenized` does, for single texts in one segment."""
    for example, ids in zip(examples, quick([example.text for example in examples]).lists(IDS), strict=True):
        yield example, ids.tolist(), [0] * len(ids), []


def _tokenized(
    examples: Sequence[Example], kind: str, tokenizer: Any
) -> Iterator[tuple[Example, list[int], list[int], list[tuple[int, int]]]]:
    """Yields each example with its token ids, its segments, and, for `tokens`, where each token lies in the text."""
    for start in range(0, len(examples), _BATCH):
        batch = examples[start : start + _BATCH]
        pairs = [example.pair for example in batch]
        encoding = tokenizer(
            [example.text for example in batch],
            None if pairs[0] is None else pairs,
            return_attention_mask=False,
            return_offsets_mapping=kind == "tokens",
        )
        ids = encoding["input_ids"]
        segments = encoding.get("token_type_ids") or [[0] * len(tokens) for tokens in ids]
        yield from zip(batch, ids, segments, encoding.get("offset_mapping") or [[]] * len(ids), strict=True)


def _first_tokens(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int | None]:
    """For each token, the number of the word whose first token it is, or None.

    A token belongs to the word that its last character stands in: byte-level tokens may begin with the blank before
    that word, and may be nothing but a blank.
    """
    word_of = [owner for number, word in enumerate(words) for owner in (*[number] * len(word), None)]
    begun: list[int | None] = []
    latest = -1
    for begin, end in offsets:
        word = word_of[end - 1] if end > begin else None
        is_first = word is not None and word > latest
        begun.append(word if is_first else None)
        latest = word if is_first and word is not None else latest
    return begun
