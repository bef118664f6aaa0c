"""Disturbs a chain of six stages in many ways at random moments, and checks that nothing is lost.

`make faults` tries each fault once, and `make chaos` tries each fault at 20 random moments. Nothing here is collected
by pytest.

- `storage`: reads and damages a storage root. A storage root in a bucket would need a class with the same functions.
- `work`: the chain, and the ways to run it: on this machine, from a node of a cluster, or submitted.
- `cluster_field`: a cluster whose number of nodes changes.
- `failing_store`: lets every third write of a process fail.
- `jumping_clock`: lets the clock of a process jump.
- `faults`: the faults.
- `moment`: runs the chain with one fault at one moment, and checks the result.
- `outcome`: the results, their file and their table.
"""
