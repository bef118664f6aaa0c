"""Statistics of scores: means over seeds, comparisons, and how certain they are.

- `seeds`: a score over the seeds of one recipe.
- `outcomes`: test predictions as counts that add up.
- `comparison`: differences with intervals, p, and a sentence about them.
- `permutation`: permutation tests over seeds and over examples.
- `power`: the smallest difference that would probably have been detected.
- `continual_metrics`: figures of a sequence of domains.
- `hyperparameter_importance`: how much each field of a search matters.
- `mixture_law`: loss by tokens trained on and by the share of a text.
"""
