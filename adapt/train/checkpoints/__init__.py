"""Saves and loads checkpoints, so that a training run can resume.

- `stored_checkpoints`: signs checkpoints, finds whole ones, removes others, and reads weights for averages.
- `checkpoint`: saves and loads checkpoints; each rank writes its share while training goes on.
- `requested_checkpoints`: requests additional checkpoints, before the group of workers grows or a node leaves.
- `reshape`: converts checkpoints for another number of workers or another ZeRO stage.
- `branch`: starts longer runs from the state that a shorter run had before its cooldown.
"""
