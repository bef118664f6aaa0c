"""A model's tokens and the words of a domain: how words break, and what is changed about it.

- `texts`: the text that words are counted in.
- `words`: words as a tokenizer sees them, with their pieces.
- `curve`: what more tokens would save.
- `candidates`: words that may become tokens.
- `merges`, `unigram`, `rebuild`: a tokenizer with more tokens.
- `rows`, `pursuit`: a model with more rows; `extend`: both, written.
- `distil`, `warm`, `only_rows`, `teach`: what new rows learn before all else is trained.
- `trim`: a tokenizer and a model without tokens that a domain never uses.
- `scratch`: a tokenizer of a domain, and a model of random weights.
- `extension_card`: its card.
- `results`: what was found; `analysis`: finds it; `picture`: draws it.
"""
