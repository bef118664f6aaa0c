"""From the records of a chain to a page that says what was found.

- `study`: what a report is made of.
- `task_runs`, `task_comparison`, `task_tables`, `task_figures`: scores of fine-tuned models, recipe by recipe.
- `sequence_runs`, `sequence_tables`, `sequence_figures`, `sequence_section`: sequences of domains, method by method.
- `tradeoffs`: what models gained on a domain, and forgot.
- `search_results`, `searches`: searches for good values.
- `trainings`: tables of pre-training.
- `selections`: selected text, as tables and as a map.
- `score_warnings`: what a reader of the scores should know.
- `lineage`: what was made of what, as a drawing.
- `report_page`: all of these in reading order, written as HTML and Markdown.
- `served_page`: the same as a page that follows the chain.
"""
