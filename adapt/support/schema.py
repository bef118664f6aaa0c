"""Defines the names of columns, files and types of data that one stage writes and another reads."""

TOKENS = "tokens"
"""Column of a token shard with one list of token ids per document, including special tokens."""

KEYS = "key"
"""Column of a token shard that identifies each document by a hash of its normalised text.

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
    **dict.fromkeys(("whole_word", "span", "difference", "tsdae"), (WORD_STARTS,)),
    "entity": (UNIT_STARTS, ENTITIES),
}


def marks_of(kind: str) -> tuple[str, ...]:
    """Returns the columns that the objective `kind` needs in addition to the tokens."""
    return _MARKS.get(kind, ())


SHARD_GLOB = "train-*.arrow"
"""Pattern of the names of shards with the training text. Sorted names are in stream order."""

HELDOUT_GLOB = "heldout-*.arrow"
"""Pattern of the names of shards with the held-out documents. Sorted names are in stream order."""

TOKENS_IN = {SHARD_GLOB: "train_tokens", HELDOUT_GLOB: "heldout_tokens"}
"""Names of the metrics with the number of tokens in the shards that match a pattern, keyed by pattern.

The metrics are in the record of a prepared corpus.
"""

END_FILE = ".end-now"
"""Name of a file in the folder of a running stage. If it exists, the stage saves its work and ends. The file is hidden,
so it does not count as an output of the stage."""


def duplicates_file(source: int) -> str:
    """Returns the name of the file that lists a source's duplicates."""
    return f"duplicates-{source:03d}.arrow"
