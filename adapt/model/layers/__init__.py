"""The parts of a transformer's layers, by architecture.

- `families`: where they are; a new architecture needs a `Pattern` there.
- `pattern`: the layers of a model, and their parts.
- `units`: attention heads and neurons, and gates at them.
- `masked`: layers of which masked parameters learn less.
- `held`: tables of which some rows do not learn.
"""
