"""Statistics of scores: means over seeds, comparisons of recipes, and their uncertainty.

- `seeds`: scores over the seeds of a recipe, and the looks of a sequential study.
- `outcomes`: test predictions as counts, from which scores are computed; permutation tests.
- `comparison`: differences with intervals, p, and a sentence about them.
- `power`: the smallest difference that would probably have been detected.
- `looks`: computes the level of each look by alpha spending, decides which comparisons end, and forecasts the others.
- `continual_metrics`: learning, forgetting and transfer over a sequence of domains.
- `hyperparameter_importance`: the effect of each field of a search on the outcome.
- `loss_laws`: predict the loss on a kind of text from tokens and mixture, and on a domain from passes over its text.
"""
