"""A corpus read, cleaned and tokenized while training goes on, without token shards on disk.

- `window`: batches from a stream of unknown length.
- `index`: where items begin in the stream, for a run that resumes.
- `online`: the stream, through Ray Data.
- `sample`: the held-out sample, tokenized beforehand.
- `serve`: one reader for all ranks.
"""
