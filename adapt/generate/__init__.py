"""Generates text with models: text that replaces general text in replay, and documents rewritten in other formats.

- `sampling`: draws tokens with random numbers that depend only on the text and the position; samples from an encoder.
- `decoder`: generates texts with a decoder and continuous batching.
- `rewriting`: the formats in which documents are rewritten, and their prompts.
- `makers`: the three ways to make the texts of a block.
- `block_files`: the files of finished blocks, and the time that the blocks took.
- `generate_blocks`: makes blocks on the cluster, joins them, and drops texts and counts why.
"""
