"""Training objectives: how rows are corrupted, and how the loss of the predictions is computed.

- `objective`: the interface, and causal language modelling.
- `masking`: masking of tokens, words, entities and spans.
- `table`: checks the objective that a configuration names, without loading torch.
"""
