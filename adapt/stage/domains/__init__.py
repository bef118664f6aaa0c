"""Stages of a sequence of domains, beside those of each domain.

- `noted`: which domains it has begun to learn.
- `matrices`: what each of its models scores on each domain; `routes`: how they do without domain ids.
- `sequence`: the stage that makes these.
"""
