"""Stages about a model's vocabulary.

- `analyze`: how the tokenizer breaks the words of domains.
- `extend`: a model and a tokenizer with words of a domain as tokens.
"""
