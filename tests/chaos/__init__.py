"""Disturbs a chain of six stages in many ways at random moments, and checks that nothing is lost.

`make faults` tries each fault once, and `make chaos` tries each fault at 20 random moments. Nothing here is collected
by pytest.

- `storage`: reads and damages a storage root. A storage root in a bucket would need a class with the same functions.
- `work`: defines the chain and runs it: on this machine, from a node of a cluster, or submitted.
- `cluster_field`: runs a cluster and changes its number of nodes.
- `failing_store`: lets every third write of a process fail.
- `jumping_clock`: lets the clock of a process jump.
- `faults`: defines the faults as functions.
- `moment`: runs the chain with one fault at one moment, and checks the result.
- `outcome`: stores the results in a file, and formats them as a table.
"""
