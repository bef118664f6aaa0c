"""Training whose number of workers changes on its way: `resources.workers: [fewest, most]`.

- `sizing`: decides how many workers there should be, and knows no Ray.
- `policy`: what Ray Train's controller asks, and the places for workers that the cluster has now.
- `requested_checkpoints`: a checkpoint out of turn, which the policy asks for, or a node that is to go.
"""
