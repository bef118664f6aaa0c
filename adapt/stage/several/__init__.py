"""Stages and checks for jobs that read several models.

- `other_models`: finds and checks members of ensembles and teachers, which a job reads in addition to its own model.
- `ensemble`: the mean of several models' predictions, and what it gains.
"""
