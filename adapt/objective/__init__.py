"""What a model is asked to predict: how rows are corrupted and how the loss is taken.

- `objective`: the interface, and causal language modelling.
- `masking`: masking of tokens, words, entities and spans.
- `table`: checks the objective that a configuration names, without torch.
"""
