"""Merges models without training, one tensor at a time.

- `table`: finds merge methods by name, and reads their options from a configuration.
- `merger`: defines the interface of merge methods, and the methods themselves.
- `compatibility`: checks that all models have the same architecture and compatible tokens.
- `streamed_merge`: merges all tensors, one at a time, and matches tensors and rows of two checkpoints.
- `companion_files`: copies settings and tokenizer, and writes the model card.
"""
