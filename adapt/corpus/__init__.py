"""Turns corpus files into streams of tokens to train on.

- `corpora`: lists the corpora of a configuration, describes their content for the hashes by which stages find finished
  results (stage keys), and checks their files.
- `files/`: reads texts from local files, remote stores and datasets.
- `documents/`: reads HTML, PDF, DOCX and other documents in a separate process.
- `entities`: reads the entities of a text from the corpus, or finds them with a tagger.
- `cleaning/`: the blocks that drop or change documents.
- `shingles`: hashes the words and runs of words of texts, to compare texts by their hashes.
- `decontamination`: drops documents that contain texts of evaluation sets.
- `heldout`: decides which documents are held out and measured.
- `screening`: decides which documents enter a corpus, and gives them ids.
- `minhash`: finds pairs of documents that may be duplicates, from MinHash signatures.
- `deduplication`: stage `dedup`, which finds duplicates over all files and sources.
- `text_profile`, `profile_sample`: measure, on a sample, the languages, duplicates and repeated lines of a corpus, and
  how well a tokenizer covers its words.
- `token_shards`: stores tokens in shards, reads them as one stream of rows, and cuts streams into batches. Its
  functions for files of one record batch are also used for other files.
- `encode_chunks`: tokenizes a chunk of texts and writes its shards.
- `prepare_corpus`: stage `prepare`, which tokenizes all files of a corpus.
- `sample_order`: maps sample j of a run to a row of a source.
- `shard_batches`: reads the training batches of each rank from shards.
- `streaming`: reads and tokenizes a corpus during training, without shards.
- `cluster_calls`: calls a function in parallel on the cluster.
- `read_progress`: shows how far a corpus has been read.
"""
