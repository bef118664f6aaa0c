"""Chains and jobs on a Ray cluster: submit, follow, look at, stop.

- `submit_order`: the command line, and what is submitted, under an identity that follows from its configuration.
- `package`: what goes to the cluster with it.
- `cluster_jobs`: the cluster's dashboard, the jobs that do some work, and following one of them until its end.
- `submission`: submits once, or each stage as a job; and runs commands that take seconds there.
- `cluster_check`: whether the cluster has what the work needs.
- `commands`: all of this by verb.
"""
