"""What a run can be resumed from.

- `seal`: lists of files with digests, signed with the key of the user.
- `retain`: which checkpoints are whole, and which of them stay.
- `checkpoint`: each rank writes its share while training goes on.
- `reshape`: takes checkpoints apart, for other resources.
- `weights`: reads weights for averages over a window.
- `branch`: longer runs that start from the state at which a shorter one cooled down.
"""
