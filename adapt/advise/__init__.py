"""Advises which recipe to run first for a corpus and tasks, with the expected cost and the evidence.

- `corpus_sample`: draws a random sample of a corpus that is not prepared.
- `collect_evidence`: measures the samples and the labelled tasks.
- `evidence`: holds the measurements, shows them as tables, and estimates the cost of each recipe.
- `regime`: computes tokens per parameter and how often texts are repeated, and recommends settings for both.
- `findings`: checks the conditions of the rules.
- `advice`: lists the rules with the published results behind them, and orders the recipes by votes and cost.
"""
