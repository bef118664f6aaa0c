"""Tokenizes texts faster than the library, with the same ids: pieces of texts repeat, and each is tokenized once.

- `text_tokenizer`: tokenizes texts by pieces or by the library, and sends a tokenizer to other processes.
- `piece_tokenizer`: tokenizes by pieces, with a table of earlier pieces.
- `cuts`: where texts are cut into pieces.
- `allowed_cuts`: finds which cuts a tokenizer allows.
- `library_calls`: calls of the library, and a direct way for plain words.
- `ragged`: lists of unequal lengths in flat arrays.
"""
