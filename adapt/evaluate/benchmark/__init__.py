"""Standard evaluations: tasks of lm-evaluation-harness (decoders) and of MTEB (sentence vectors).

- `harness_tasks`, `mteb_tasks`: which tasks are measured; checks before anything runs.
- `harness_run`, `mteb_run`: score a model on the tasks, in a Ray task.
- `plain_model`: loads a decoder for other libraries, and counts the tokens that it computes.
- `item_scores`: scores per item, and statistics of them.
- `benchmark_leaks`: finds items in the text that a model was trained on.
- `benchmark_changes`: compares models, paired by item, over seeds, and without leaked items.
- `benchmark_results`: the results, as stored in records and shown.
"""
