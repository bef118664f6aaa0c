"""Statistics of scores: means over seeds, comparisons of recipes, and their uncertainty.

- `seeds`: scores over the seeds of a recipe, and the looks of a sequential study.
- `outcomes`: stores test predictions as counts, computes scores from the counts, and runs permutation tests.
- `comparison`: differences of scores with intervals and p-values, and sentences that describe them.
- `power`: the smallest difference that would probably have been detected.
- `looks`: computes the level of each look by alpha spending, decides which comparisons end, forecasts the others.
- `continual_metrics`: learning, forgetting and transfer over a sequence of domains.
- `hyperparameter_importance`: the effect of each field of a search on the outcome.
- `loss_laws`: predicts losses from the tokens and mixture of a training run, or from the passes over a domain's text.
"""
