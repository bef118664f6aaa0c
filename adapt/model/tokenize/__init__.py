"""Tokenizing texts faster than the library, with the same ids: pieces of texts repeat, and each is tokenized once.

- `portable`: a model's tokenizer, loaded once for many processes.
- `quick`: how texts are tokenized: by pieces, or by the library.
- `ragged`: lists of unequal lengths in flat arrays.
- `library`: the library's own call.
- `cuts`: where texts are cut into pieces.
- `table`: the tokens of pieces that came before.
- `placed`: the places and words of a piece's tokens.
- `direct`: plain words go to the tokenizer's model at once.
- `pieced`: tokenizes by pieces.
- `trial`: finds out which cuts a tokenizer allows.
- `probes`: the texts that show it.
- `atoms`: what these are made of.
"""
