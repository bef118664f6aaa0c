"""Stages that measure and change the vocabulary of a model.

- `vocabulary_analysis`: how words are split into tokens.
- `vocabulary_changes`: a model with more, fewer or new tokens.
"""
