"""Models made of others without training, a tensor at a time.

- `table`: the ways of merging by name, and the options of a configuration.
- `merger`: the interface, `average` and `interpolate`.
- `task_vectors`: `task_arithmetic`, `residual` and `dare`.
- `ties`: `ties`.
- `compatibility`: refuses models of another architecture or with other tokens.
- `tensor_matching`: which tensors and rows of two checkpoints correspond.
- `tensor_files`: reads and writes weights one tensor at a time.
- `streamed_merge`: merges all tensors, one at a time.
- `companion_files`: settings, tokenizer and model card of the result.
"""
