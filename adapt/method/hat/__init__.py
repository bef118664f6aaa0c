"""Hard attention to the task (HAT): masks of units for each domain, and what a domain uses stays as it is.

`annealing` has the formulas, `blocked` says which parameters the domains before use, `learning` trains masks for any
method that has them (CPT is another), `method` is HAT.
"""
