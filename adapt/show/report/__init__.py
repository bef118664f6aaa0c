"""From the records of a chain to a page that says what was found.

- `entry`: what a report is made of.
- `tasks/`: scores of fine-tuned models, recipe by recipe.
- `sequences/`: sequences of domains, method by method.
- `tradeoffs/`: what models gained on a domain, and forgot.
- `searches/`: searches for good values.
- `trainings`: tables of pre-training.
- `selections`, `selection_map`: selected text, as tables and as a map.
- `lineage`: what was made of what.
- `lineage_svg`: the drawing of that.
- `sections`: all of these in reading order.
- `write`: writes the report of a study.
- `serving/`: the same as a page that follows the chain.
"""
