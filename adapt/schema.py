"""The columns and types that stages hand each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

TOKENS = "tokens"
"""Column of a token shard: one list of token ids a document, special tokens included."""

SHARD_GLOB = "train-*.arrow"
"""Token shards of the training text, in stream order."""

HELDOUT_GLOB = "heldout-*.arrow"
"""Token shards of the held-out documents, in stream order."""


def token_schema(vocabulary_size: int) -> pa.Schema:
    """Schema of a token shard, with the smallest unsigned integer that holds every id."""
    import pyarrow as pa

    smallest = pa.uint16() if vocabulary_size <= 2**16 else pa.uint32()
    return pa.schema([(TOKENS, pa.list_(smallest))])
