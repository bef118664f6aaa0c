"""Analyzes how a tokenizer splits the words of a domain, and adds tokens to a model or removes them.

- `corpus_texts`: reads the text in which words are counted.
- `word_reader`: splits text into the words of a tokenizer, and words into pieces.
- `analysis`: measures how words are split, and how many pieces new tokens would save.
- `candidates`: finds words that may become tokens.
- `rebuild`: builds a tokenizer with more tokens.
- `embedding_rows`: adds rows to a model, with initial values.
- `extension`: writes an extended tokenizer and model with a model card.
- `model_changes`: extends and trims a model, or makes a new one with random weights.
- `teaching`: trains new rows before the rest of the model.
- `trimming`: removes tokens that a domain never uses.
- `vocabulary_results`: the results of these stages.
"""
