"""Scores of fine-tuned models: for each task a row, for each recipe the runs with their seeds.

- `collect`: a study's entries in that order.
- `predictions`: the test predictions of a recipe's runs.
- `compared`: every recipe against the baseline.
- `cost`: what a recipe cost.
- `verdict`: what that comes to, in sentences.
- `tables`: scores, differences, every seed.
- `figures`: the drawings.
- `details`: a task's best recipe.
- `warnings`: what a reader of the scores should know.
"""
