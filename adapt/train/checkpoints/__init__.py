"""Saves and loads checkpoints, so that a training run can resume.

- `stored_checkpoints`: signs checkpoints, finds complete checkpoints, removes old and incomplete ones, and reads
  weights.
- `checkpoint`: saves and loads checkpoints. Each rank saves its share, which is uploaded while training goes on.
- `requested_checkpoints`: requests additional checkpoints, before the group of workers grows or a node leaves.
- `reshape`: converts checkpoints for another number of workers or another ZeRO stage.
- `branch`: starts longer runs from the state that a shorter run had before its cooldown.
"""
