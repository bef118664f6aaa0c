"""A cluster on this machine, brought up, used and taken down.

- `processes`: what a node has started is kept together, found, and ended.
- `nodes`: the head and other nodes of Ray, each a group of processes.
- `autoscaler`: Ray's autoscaler brings such nodes and takes them away.
- `submission`: what a demonstration submits, looks at and tells.
- `demonstrations`: a node is lost, the head is lost, nodes come and go.
"""
