"""A model's tokens and the words of a domain: how words break, and what is changed about it.

- `texts`: the text that words are counted in.
- `words`: words as a tokenizer sees them, with their pieces.
- `curve`: what more tokens would save.
- `results`: what was found; `analysis`: finds it; `picture`: draws it.
"""
