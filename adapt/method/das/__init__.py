"""DAS (arXiv 2302.03241): units (attention heads and neurons) that matter to past domains move less.

- `method`: the plug-in and its options.
- `stage`: the stage that measures how important units are.
- `unit_sizes`: the measurement of this stage, which runs on the cluster's devices.
- `criteria`: the criteria by which the importance of units is measured.
- `importance`: normalizes and saves importance, and masks updates by it.
- `contrast`: computes several views of a text by dropout, how far they differ, and the contrastive loss of a training.
"""
