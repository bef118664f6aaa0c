"""Training objectives: how rows are corrupted, and how the loss of the predictions is computed.

- `objective`: the interface, and causal language modelling.
- `masking`: masking of tokens, words, entities and spans.
- `word_weights`: weights of words for difference masking, without loading torch.
- `replaced_tokens`: replaced-token detection, with a generator next to the model.
- `tsdae`: rebuilding of texts from one vector each, which trains sentence vectors.
- `table`: checks the objective that a configuration names, without loading torch.
"""
