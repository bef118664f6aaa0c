"""DAS (arXiv 2302.03241): units (attention heads and neurons) that matter to past domains move less.

- `method`: the plug-in and its options.
- `stage`: the stage that measures how important units are.
- `unit_sizes`: the code of this stage that runs on the cluster's devices.
- `criteria`: the criteria for the importance of units.
- `importance`: normalizes and saves importance, and masks updates by it.
- `contrast`: computes views of a text with different dropout, their divergence, and the contrastive loss of training.
"""
