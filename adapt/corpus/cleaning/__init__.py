"""The blocks of `corpus.cleaning`. A block drops documents for a named reason, or changes documents.

- `cleaning_blocks`: the base class and the table of blocks, and edits that move entities along with their text.
- `filters`: blocks that drop documents.
- `formatters`: blocks that change documents.
"""
