"""From files to token streams.

- `corpora`: the corpora of a configuration, their identity for keys, and first checks.
- `files/`: from files, wherever they are, to texts.
- `entities`: entities in a text, given or found by a tagger.
- `cleaning/`: the blocks that drop or change documents.
- `shingles`: texts as runs of words, to compare them.
- `word_hashes`: the words of many texts as hashes.
- `decontamination`: drops documents that contain texts of evaluation sets.
- `heldout`: which documents are held out and measured.
- `screening`: which documents enter, with ids and counts.
- `minhash`: signatures, bands and candidate pairs of duplicates.
- `deduplication`: stage `dedup`, over all files and sources.
- `legibility`: how well a tokenizer reads a corpus.
- `token_shards`: shards of tokens, read as one stream cut into rows.
- `encode_chunks`: writes the shards of a chunk of texts.
- `prepare_corpus`: stage `prepare`, over all parts of a manifest.
- `sample_order`: which row of which source is sample j of a run.
- `shard_batches`: the batches of each rank, read from shards.
- `token_windows`: shuffled batches from a stream of unknown length.
- `streaming`: reads and tokenizes while training goes on, without shards.
- `cluster_calls`: calls of a function side by side on the cluster.
- `read_progress`: shows how far a corpus has been read.
"""
