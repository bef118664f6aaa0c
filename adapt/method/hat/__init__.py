"""Hard attention to the task (HAT): each domain learns a mask of units, and later domains cannot change these units.

- `method`: the plug-in, its options, and the base class that CPT shares.
- `mask_learning`: trains the masks, for HAT and CPT.
"""
