"""Stages about a model's vocabulary.

- `screened`: the text that they read of domains.
- `analyze`: how the tokenizer breaks the words of domains.
- `extend`: a model and a tokenizer with words of a domain as tokens.
- `taught`: what the rows of new tokens learn before all else is trained.
- `trim`: a model and a tokenizer without tokens that no text uses.
- `scratch`: a tokenizer and a model from nothing.
"""
