"""A model's tokens and the words of a domain: how words break into pieces, and how tokens are added or removed.

- `corpus_texts`: the text that words are counted in.
- `word_reader`: words as a tokenizer sees them, with their pieces.
- `analysis`: how words break, and what more tokens would save.
- `candidates`: words that may become tokens.
- `rebuild`: a tokenizer with more tokens.
- `embedding_rows`: a model with more rows, and their first values.
- `extension`: a tokenizer and a model with more tokens, written with a card.
- `model_changes`: extends and trims a model.
- `teaching`: trains new rows before the rest of the model.
- `trimming`: a tokenizer and a model without tokens that a domain never uses.
- `from_scratch`: a tokenizer of a domain, and a model of random weights.
- `vocabulary_results`: the results of these stages.
"""
