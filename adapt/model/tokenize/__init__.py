"""Tokenizes texts faster than the `tokenizers` library, with the same ids: repeated pieces are tokenized only once.

- `text_tokenizer`: tokenizes texts by pieces or by the library, and sends a tokenizer to other processes.
- `piece_tokenizer`: tokenizes texts by pieces, with a table of earlier pieces.
- `cuts`: cuts texts into pieces by rules.
- `allowed_cuts`: finds the rules that a tokenizer allows.
- `library_calls`: calls of the library, and a faster path for plain words.
- `ragged`: lists of unequal lengths in flat arrays.
"""
