"""Submits chains and jobs to a Ray cluster, follows them, shows their state, and stops them.

- `submit_order`: parses the command line, and derives the id of a chain or job from its configuration.
- `cluster_jobs`: connects to the cluster's dashboard, lists its jobs, and follows a job until its end.
- `submission`: carries out each verb, such as `submit` and `status`. It submits a chain as one cluster job, or each
  stage as a separate cluster job.
- `cluster_check`: determines the working directory and the environment that are sent to the cluster, and checks that
  the cluster has the storage and the nodes that the chain or job needs.
"""
