"""Stages that measure models.

- `evaluate`: a model's loss on held-out text; `compare`: those of several models.
- `perplexity`: pseudo-perplexity, or a causal model's perplexity.
- `neighbours`: how often nearest neighbours have one label.
- `scores`: what a model scores on a task, over all seeds.
- `evidence`: what is seen in samples of texts and in tasks, for advice.
"""
