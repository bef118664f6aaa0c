"""Submits chains and jobs to a Ray cluster, follows them, shows their state, and stops them.

- `submit_order`: parses the command line, and gives the work an identity that follows from its configuration.
- `cluster_jobs`: connects to the cluster's dashboard, lists its jobs, and follows a job until its end.
- `submission`: the command of each verb; submits work as one job or each stage as a job.
- `cluster_check`: the working directory and the environment that are sent to the cluster; checks that the cluster has
  the storage and the nodes that the work needs.
"""
