"""Advises which recipe to run first for a corpus and tasks, with the expected cost and the evidence.

- `corpus_sample`: draws a random sample of a corpus that is not prepared.
- `collect_evidence`: measures samples and tasks.
- `evidence`: the measurements, tables of them, and the cost of each recipe.
- `regime`: tokens per parameter and repeats of the texts, and recommendations for them.
- `findings`: checks the conditions of the rules.
- `advice`: the rules with published figures; orders the recipes by votes and cost.
"""
