"""The columns and types that stages hand each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

TOKENS = "tokens"
"""Column of a token shard: one list of token ids a document, special tokens included."""

KEYS = "key"
"""Column of a token shard: what each document is known by, a hash of its normalised text
(`adapt.corpus.heldout`)."""

BYTES = "bytes"
"""Column of a token shard: how long each document's text is, as UTF-8. Older shards lack it."""

STARTS = "starts"
"""Column of a batch: where documents start, which a shard's offsets say."""

WORD_STARTS = "word_starts"
"""Column of a token shard: True at the first token of each word, and at every special token."""

UNIT_STARTS = "unit_starts"
"""Column of a token shard: True at the first token of each entity and of each word outside of entities, and at every
special token."""

ENTITIES = "entities"
"""Column of a token shard: True at the tokens of entities."""

_MARKS = {"whole_word": (WORD_STARTS,), "span": (WORD_STARTS,), "entity": (UNIT_STARTS, ENTITIES)}


def marks_of(kind: str) -> tuple[str, ...]:
    """The columns that an objective needs beyond the tokens."""
    return _MARKS.get(kind, ())


SHARD_GLOB = "train-*.arrow"
"""Token shards of the training text, in stream order."""

HELDOUT_GLOB = "heldout-*.arrow"
"""Token shards of the held-out documents, in stream order."""

TOKENS_IN = {SHARD_GLOB: "train_tokens", HELDOUT_GLOB: "heldout_tokens"}
"""What the record of a prepared corpus calls the number of their tokens."""


def token_schema(vocabulary_size: int, marks: tuple[str, ...] = ()) -> pa.Schema:
    """Schema of a token shard: ids as the smallest unsigned integer that holds each, marks as a bit a token."""
    import pyarrow as pa

    smallest = pa.uint16() if vocabulary_size <= 2**16 else pa.uint32()
    return pa.schema([(TOKENS, pa.list_(smallest)), *((mark, pa.list_(pa.bool_())) for mark in marks)])
