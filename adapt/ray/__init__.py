"""The connection of this process to Ray. Inside this package, `import ray` imports the Ray library.

- `runtime`: joins or starts Ray once, checks its resources, configures Ray Data, and unwraps our own errors.
- `own`: starts Ray on this machine only, in a private folder.
- `address`: parses the address of a cluster, and joins the cluster.
- `node_files`: lets functions on any node use the files of a stage in a bucket.
- `private`: all private parts of Ray that dontstop uses.
- `guard`: handles signals while Ray starts, and ends the job when Ray dies.
"""
