"""Computes the same token ids as the `tokenizers` library, but faster: repeated pieces of text are tokenized only once.

- `text_tokenizer`: tokenizes texts by pieces or by the library, and serializes tokenizers for other processes.
- `piece_tokenizer`: tokenizes texts by pieces, with a table of earlier pieces; calls the library.
- `cuts`: cuts texts into pieces by rules.
- `allowed_cuts`: finds the rules that a tokenizer allows.
- `ragged`: stores lists of unequal lengths in flat arrays.
"""
