"""Training objectives: how rows are corrupted, and how the loss of the predictions is computed.

- `objective`: the interface, and causal language modelling.
- `masking`: masking of tokens, words, entities and spans.
- `word_weights`: computes the weights of words for difference masking, without loading torch.
- `replaced_tokens`: replaced-token detection, with a generator next to the model.
- `tsdae`: trains sentence vectors by rebuilding each text from one vector.
- `table`: lists the objectives and checks the configured objective, without loading torch.
"""
