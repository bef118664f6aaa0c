"""Models made of others without training, a tensor at a time.

- `base`: what a way of merging is.
- `table`: the ways by name, and what a configuration asks of them.
- `interpolate`, `average`, `task_arithmetic`, `ties`, `dare`, `residual`: the ways.
- `alike`: refuses models of another architecture.
- `new_tokens`: compares tokens; some models may have more than their base.
- `new_rows`: the rows of those.
- `stored`: weights on disk, read one at a time.
- `names`: which tensors of two checkpoints are the same.
- `write`: writes weights one at a time.
- `run`: merges.
- `dress`: adds settings, tokenizer and card.
- `merge_card`: the README.md of what was made.
"""
