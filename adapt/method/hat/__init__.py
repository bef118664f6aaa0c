"""Hard attention to the task (HAT): each domain learns a mask that selects units, and later domains cannot change them.

- `method`: the plug-in, its options, and a base class for HAT and CPT.
- `mask_learning`: trains the masks, for HAT and CPT.
"""
