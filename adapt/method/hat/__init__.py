"""Hard attention to the task (HAT): masks of units for each domain, and what a domain uses stays as it is.

- `options`, `method`: the plug-in.
- `mask_learning`: trains masks for any method that has them (CPT is another).
"""
