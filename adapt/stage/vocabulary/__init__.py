"""Stages about a model's vocabulary.

- `analyze`: how the tokenizer breaks the words of domains.
"""
