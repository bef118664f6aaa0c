"""Names of the columns, files and types of data that one stage writes and another reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

TOKENS = "tokens"
"""Column of a token shard with one list of token ids per document, including special tokens."""

KEYS = "key"
"""Column of a token shard with the identity of each document: a hash of its normalised text.

See `adapt.corpus.heldout`.
"""

BYTES = "bytes"
"""Column of a token shard with the length of each document's text in UTF-8 [bytes]. Older shards lack it."""

STARTS = "starts"
"""Column of a batch that is true at the first token of each document. It is computed from a shard's offsets."""

WORD_STARTS = "word_starts"
"""Column of a token shard that is true at the first token of each word and at every special token."""

UNIT_STARTS = "unit_starts"
"""Column of a token shard that marks the beginnings of units.

It is true at the first token of each entity, at the first token of each word outside of entities, and at every special
token.
"""

ENTITIES = "entities"
"""Column of a token shard that is true at the tokens of entities."""

_MARKS = {
    **dict.fromkeys(("whole_word", "span", "difference"), (WORD_STARTS,)),
    "entity": (UNIT_STARTS, ENTITIES),
}


def marks_of(kind: str) -> tuple[str, ...]:
    """Returns the columns that an objective needs besides the tokens."""
    return _MARKS.get(kind, ())


SHARD_GLOB = "train-*.arrow"
"""Pattern of the names of shards with the training text. Sorted names are in stream order."""

HELDOUT_GLOB = "heldout-*.arrow"
"""Pattern of the names of shards with the held-out documents. Sorted names are in stream order."""

TOKENS_IN = {SHARD_GLOB: "train_tokens", HELDOUT_GLOB: "heldout_tokens"}
"""Names of the metrics with the number of tokens in these shards, in the record of a prepared corpus."""


def token_schema(vocabulary_size: int, marks: tuple[str, ...] = ()) -> pa.Schema:
    """Returns the schema of a token shard: ids are 16 or 32 bit unsigned integers, and marks have one bit per token."""
    import pyarrow as pa

    smallest = pa.uint16() if vocabulary_size <= 2**16 else pa.uint32()
    return pa.schema([(TOKENS, pa.list_(smallest)), *((mark, pa.list_(pa.bool_())) for mark in marks)])
