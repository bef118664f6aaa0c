"""Connects this process to Ray. Inside this package, `import ray` imports the Ray library.

- `runtime`: joins or starts Ray once, checks its resources, configures Ray Data, and unwraps dontstop's own errors.
- `connection`: imports Ray, starts it on this machine in a private folder, or joins the cluster at an address.
- `node_files`: lets functions on any node use the files of a stage in a bucket.
- `private`: contains all uses of Ray's private interfaces.
- `guard`: handles signals while Ray starts, and ends the job when Ray dies.
"""
