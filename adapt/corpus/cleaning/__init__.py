"""The blocks of `corpus.cleaning`. A block drops documents for a named reason, or changes documents.

- `block`: the base class of blocks, and edits that move entities along with their text.
- `filters`: blocks that drop documents.
- `formatters`: blocks that change documents.
- `catalogue`: creates blocks from a configuration and checks their options.
"""
