"""Advice: which recipe to run first for a corpus and tasks, at what cost, and on what evidence.

- `corpus_sample`: a random sample of a corpus that is not prepared.
- `collect_evidence`: measures samples and tasks.
- `evidence`: what was measured.
- `recipe_costs`: what each recipe would cost.
- `findings`: the conditions of the rules.
- `rules`: the rules, with published figures.
- `advice`: an order of recipes.
"""
