"""Hard attention to the task (HAT): each domain learns a mask that selects units, and later domains cannot change them.

- `method`: the plug-ins HAT and CPT, their options, and a base class for both.
- `mask_learning`: trains the masks, for HAT and CPT.
"""
