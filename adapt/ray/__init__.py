"""The Ray cluster that this process works with. `import ray` in this package is the library.

- `runtime`: joins or starts Ray, once; what may be asked of it; Ray Data's settings; errors of ours that Ray carried.
- `own`: starts a Ray on this machine alone, in a private folder.
- `address`: reads the address of a cluster, and joins it.
- `private`: all private parts of Ray that are used.
- `guard`: heeds signals while Ray starts, and ends the job when Ray dies.
"""
