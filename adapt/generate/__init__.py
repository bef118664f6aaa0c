"""Generates text with models: text for replay in place of general text, and documents rewritten in other formats.

Texts are made in blocks. A block is a group of texts that one process makes together.

- `sampling`: draws tokens with random numbers that depend only on the text and the position; samples from an encoder.
- `decoder`: generates texts with a decoder and continuous batching.
- `rewriting`: defines the formats in which documents are rewritten, and their prompts.
- `makers`: makes the texts of a block in one of three ways.
- `block_files`: reads the files of finished blocks, and the time that the blocks took.
- `generate_blocks`: makes blocks on the cluster, joins them, drops unsuitable texts, and counts these by reason.
"""
