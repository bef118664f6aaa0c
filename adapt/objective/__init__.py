"""Training objectives. An objective decides how rows are corrupted, and computes the loss of the predictions.

- `objective`: defines the interface of objectives, and causal language modelling.
- `masking`: masks tokens, words, entities and spans.
- `word_weights`: computes the weights of words for difference masking, without loading torch.
- `replaced_tokens`: trains a model to detect tokens that a generator has replaced.
- `tsdae`: trains sentence vectors by rebuilding each text from one vector.
- `table`: lists the objectives and checks the configured objective, without loading torch.
"""
