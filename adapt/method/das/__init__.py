"""DAS (arXiv 2302.03241): units that matter to past domains move less, and new knowledge is contrasted with old.

- `options`, `method`: the plug-in.
- `stage`: measures how important units are, on the devices of the cluster.
- `criteria`: what makes a unit important.
- `importance`: normalizes and saves importance, and masks updates by it.
- `contrast`: two views of a text by dropout, how far they are apart, and the contrastive loss of a training.
"""
