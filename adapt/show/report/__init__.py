"""Makes a report page from the records of a chain.

- `study`: the chain of a report, with its finished stages, and a drawing of the stages and their inputs.
- `task_runs`, `task_comparison`, `task_tables`: scores of fine-tuned models by recipe.
- `look_texts`: verdicts of sequential studies.
- `sequence_runs`, `sequence_tables`, `sequence_section`: sequences of domains by method.
- `tradeoffs`: gains on a domain against forgetting of general text, and how often a text can be read.
- `search_results`, `searches`: results of hyperparameter searches.
- `trainings`: tables of pre-training, and selected text as tables and as a map.
- `report_page`: all sections in reading order, with warnings about scores, as HTML and Markdown.
- `served_page`: the report as a page that is updated while the chain runs.
"""
