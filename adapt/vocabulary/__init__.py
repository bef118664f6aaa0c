"""Analyzes how a tokenizer splits the words of a domain, and adds tokens to a model or removes them.

- `word_reader`: reads text, splits it into words as a tokenizer does, and splits words into pieces.
- `analysis`: measures how words are split, and finds words that may become tokens.
- `new_rows`: adds rows for new tokens to a model, initializes them, and trains them before the rest of the model.
- `extension`: rebuilds a tokenizer with more tokens, and writes it and the extended model with a model card.
- `model_changes`: extends or trims a model, or creates a new model with random weights.
- `trimming`: removes tokens that a domain never uses.
- `vocabulary_results`: defines the results of the stages that analyze, extend or trim a vocabulary.
"""
