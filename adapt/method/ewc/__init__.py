"""EWC: weights that past text depends on are held back.

- `options`: section `ewc`.
- `method`: the method, and the stage that measures the Fisher information.
"""
