"""Merges models without training, one tensor at a time.

- `table`: the ways of merging by name, and their options in a configuration.
- `merger`: the interface, `average` and `interpolate`.
- `task_vectors`: `task_arithmetic`, `residual` and `dare`.
- `ties`: `ties`.
- `compatibility`: refuses models of another architecture or with other tokens.
- `tensor_matching`: matches the tensors and rows of two checkpoints.
- `tensor_files`: reads and writes weights one tensor at a time.
- `streamed_merge`: merges all tensors, one at a time.
- `companion_files`: copies settings and tokenizer, and writes the model card.
"""
