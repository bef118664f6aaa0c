"""Statistics of scores: means over seeds, comparisons of recipes, and their uncertainty.

- `seeds`: mean and interval of a recipe's score over its seeds.
- `outcomes`: test predictions as counts, from which scores are computed.
- `comparison`: differences with intervals, p, and a sentence about them.
- `permutation`: permutation tests over seeds and over examples.
- `power`: the smallest difference that would probably have been detected.
- `seed_rounds`: the looks of a sequential study, and what each found.
- `spending`: the level of each look, by alpha spending.
- `looks`: decides which comparisons of a sequential study have ended, and forecasts the others.
- `continual_metrics`: learning, forgetting and transfer over a sequence of domains.
- `hyperparameter_importance`: the effect of each field of a search on the outcome.
- `repeats_law`: predicts the loss on a domain from the number of passes over its text, and when repeats stop helping.
- `mixture_law`: predicts the loss on a kind of text from the number of training tokens and the share of this kind.
"""
