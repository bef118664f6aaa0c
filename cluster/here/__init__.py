"""Runs a Ray cluster of several nodes on this machine, for demonstrations and tests.

- `processes`: finds and ends all processes of a node.
- `nodes`: starts the head and other nodes of Ray, each as a group of processes.
- `autoscaler`: lets Ray's autoscaler start and stop such nodes.
- `submission`: submits a job, follows it, and reads its results.
- `demonstrations`: shows that training runs survive the loss of a node or of the head, and shows autoscaling.
"""
