"""Hard attention to the task (HAT): masks of units for each domain, and what a domain uses stays as it is.

- `method`: the plug-in and its options, and what it shares with CPT.
- `mask_learning`: trains masks for any method that has them (CPT is another).
"""
