"""A cluster on this machine, brought up, used and taken down.

- `keeper`, `processes`: what a node has started is kept together, found, and ended.
- `node`, `nodes`: the head and other nodes of Ray, each a group of processes.
- `story`, `submission`, `training`: what a demonstration tells, and what it looks at.
- `demo`, `head`: a node is lost, and the head.
- `autoscaler`, `provider`, `growing`: nodes come and go.
"""
