"""DAS (arXiv 2302.03241): units that matter to past domains move less, and new knowledge is contrasted with old.

- `method`: the plug-in and its options.
- `stage`: the stage that measures how important units are; `unit_sizes`: what it runs on the devices of the cluster.
- `criteria`: what makes a unit important.
- `importance`: normalizes and saves importance, and masks updates by it.
- `contrast`: two views of a text by dropout, how far they are apart, and the contrastive loss of a training.
"""
