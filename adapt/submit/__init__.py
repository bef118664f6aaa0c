"""Chains and jobs on a Ray cluster: submit, follow, look at, stop.

- `arguments`: the command line.
- `order`: what is submitted, under an identity that follows from its configuration.
- `package`: what goes to the cluster with it.
- `connection`: the cluster's dashboard.
- `jobs`: the jobs of a cluster that do some work; `orphans`: those whose driver has died.
- `submit`: submits once; `follow`: shows the log until the end; `stages`: each stage as a job.
- `small`: commands that run on the cluster for seconds.
- `check`, `limits`: whether the cluster has what the work needs.
- `commands`: all of this by verb.
"""
