"""Checkpoints, from which a training resumes.

- `seal`: signed lists of a checkpoint's files and their digests.
- `retain`: finds complete checkpoints, and removes incomplete, forged and old ones.
- `checkpoint`: saves and loads checkpoints; each rank writes its share while training goes on.
- `reshape`: converts checkpoints for another number of workers or another ZeRO stage.
- `weights`: reads the weights of checkpoints, for averages over a window of steps.
- `branch`: starts longer runs from the state that a shorter run had before its cooldown.
"""
