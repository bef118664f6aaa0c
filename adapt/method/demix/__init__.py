"""DEMix: a feed-forward expert for each domain, and their mixture where no domain is given.

`method` is the method; `adapt.evaluate.mixture` mixes.
"""
