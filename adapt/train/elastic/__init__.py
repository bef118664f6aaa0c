"""Training with a number of workers that changes while it runs: `resources.workers: [fewest, most]`.

- `sizing`: decides on the number of workers, independently of Ray.
- `policy`: answers Ray Train's controller, and counts the workers that the cluster has room for.
- `requested_checkpoints`: checkpoints between the regular ones, before the group of workers grows or a node leaves.
"""
