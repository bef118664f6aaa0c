"""Defines the blocks that `corpus.cleaning` can list. A block drops documents for a named reason, or changes documents.

- `cleaning_blocks`: the base class of blocks, the table of all blocks, and edits of texts that have entities.
- `filters`: blocks that drop documents.
- `formatters`: blocks that change documents.
"""
