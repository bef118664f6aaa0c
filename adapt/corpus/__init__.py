"""From files to token streams.

- `roles`: which corpora a configuration has beside the domain's.
- `identity`: what of their configuration decides which documents are read.
- `files/`: from files, wherever they lie, to texts.
- `readable`: a first look at every file.
- `entities`: what is named in a text.
- `cleaning/`: the blocks that drop documents or change them.
- `shingles`: texts as runs of words, for comparing them.
- `alphabet`: what kind of character each is; `folding`: what each becomes where words are compared.
- `word_hashes`: the words of many texts as hashes.
- `normal`: the normalised form of many texts at once.
- `screening/`: which documents enter, and which are held out.
- `dedup/`: which documents are duplicates of others.
- `shards/`: texts become token shards.
- `batches/`: from shards to the batches of each rank.
- `streaming/`: the same without shards on disk, while training goes on.
- `shared`: general text that is trained on too.
- `spread`: a function called side by side on the cluster.
- `watch`: shows how far a corpus has been read.
"""
