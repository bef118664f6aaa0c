"""Names of the columns, files and types of data that one stage writes and another reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

TOKENS = "tokens"
"""Column of a token shard: one list of token ids per document, including special tokens."""

KEYS = "key"
"""Column of a token shard: the identity of each document, a hash of its normalised text (`adapt.corpus.heldout`)."""

BYTES = "bytes"
"""Column of a token shard: length of each document's text in UTF-8 [bytes]. Older shards lack it."""

STARTS = "starts"
"""Column of a batch: True at the first token of each document, computed from a shard's offsets."""

WORD_STARTS = "word_starts"
"""Column of a token shard: True at the first token of each word, and at every special token."""

UNIT_STARTS = "unit_starts"
"""Column of a token shard: True at the first token of each entity and of each word outside of entities, and at every
special token."""

ENTITIES = "entities"
"""Column of a token shard: True at the tokens of entities."""

_MARKS = {"whole_word": (WORD_STARTS,), "span": (WORD_STARTS,), "entity": (UNIT_STARTS, ENTITIES)}


def marks_of(kind: str) -> tuple[str, ...]:
    """Returns the columns that an objective needs besides the tokens."""
    return _MARKS.get(kind, ())


SHARD_GLOB = "train-*.arrow"
"""Token shards of the training text, in stream order."""

HELDOUT_GLOB = "heldout-*.arrow"
"""Token shards of the held-out documents, in stream order."""

TOKENS_IN = {SHARD_GLOB: "train_tokens", HELDOUT_GLOB: "heldout_tokens"}
"""Names of the metrics with the number of tokens in these shards, in the record of a prepared corpus."""


def token_schema(vocabulary_size: int, marks: tuple[str, ...] = ()) -> pa.Schema:
    """Returns the schema of a token shard: ids as 16 or 32 bit unsigned integers, marks as one bit per token."""
    import pyarrow as pa

    smallest = pa.uint16() if vocabulary_size <= 2**16 else pa.uint32()
    return pa.schema([(TOKENS, pa.list_(smallest)), *((mark, pa.list_(pa.bool_())) for mark in marks)])
