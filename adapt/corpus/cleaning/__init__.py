"""The blocks of `corpus.cleaning`, one a file: each drops documents for a named reason, or changes them.

- `block`: what a block is.
- `catalogue`: from the configuration to blocks; their list.
- `unicode`, `pii`, `boilerplate`: blocks that change documents.
- `length`, `letters`, `symbols`, `language`, `repetition`: blocks that drop them.
- `characters`: how many of a text's are letters, for `letters`.
- `runs`: how much of a text is runs of words that it repeats, for `repetition`.
"""
