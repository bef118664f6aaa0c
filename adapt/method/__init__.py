"""Methods that reduce forgetting. Each changes training through hooks of `base.Method`; `table` lists all methods.

`measurement`, `row_sums` and `collectives` are shared code; every other module has one method or a few related ones.
"""
