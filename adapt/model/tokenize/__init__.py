"""Computes the same token ids as the `tokenizers` library, but faster: repeated pieces of text are tokenized only once.

- `text_tokenizer`: tokenizes texts by pieces if the tokenizer allows this, otherwise by the library; serializes
  tokenizers for other processes.
- `piece_tokenizer`: tokenizes texts by pieces, with the library and a table of earlier pieces. Tokens of texts are
  lists of unequal lengths in flat arrays (`Ragged`).
- `cuts`: cuts texts into pieces by rules.
"""
