"""Makes a report page from the records of a chain.

- `study`: the chain of a report, with its finished stages, and a drawing of the stages and their inputs.
- `study_results`: scores of fine-tuned models by task and recipe, and trials of hyperparameter searches.
- `task_comparison`, `task_tables`: comparisons of recipes, and tables of scores.
- `look_texts`: verdicts of sequential studies.
- `sequence_runs`, `sequence_tables`, `sequence_section`: sequences of domains by method.
- `pareto_front`: the Pareto front and its knee.
- `tradeoffs`: gains on a domain against forgetting of general text, and how often a text can be read.
- `searches`: tables and drawings of hyperparameter searches.
- `trainings`: tables of pre-training, and selected text as tables and as a map.
- `report_page`: all sections in reading order, with warnings about scores, as HTML and Markdown.
- `served_page`: the report as a page that is updated while the chain runs.
"""
