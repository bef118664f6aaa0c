"""The blocks of `corpus.cleaning`: each drops documents for a named reason, or changes them.

- `block`: the base class of blocks, and edits that keep entities.
- `filters`: blocks that drop documents.
- `formatters`: blocks that change documents.
- `catalogue`: creates blocks from a configuration and checks their options.
"""
