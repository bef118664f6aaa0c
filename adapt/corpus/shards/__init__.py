"""Texts become token shards, once for all trainings.

- `form`: what an objective needs beyond plain tokens.
- `marks`: where words and entities lie among the tokens.
- `tokens`: shards, read back as one stream cut into rows.
- `legible`: how well the tokenizer reads the text, on a sample.
- `encode`: a chunk of texts in, its shards out.
- `prepare`: the stage, over all parts of a manifest.
- `gather`: several prepared sources as one, to measure on.
"""
