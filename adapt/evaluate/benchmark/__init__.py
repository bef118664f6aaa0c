"""Standard evaluations: tasks of lm-evaluation-harness (decoders) and of MTEB (sentence vectors).

- `harness_tasks`, `mteb_tasks`: find the configured tasks, check them before anything runs, and start the Ray task.
- `harness_run`, `mteb_run`: score a model on the tasks, in a Ray task.
- `item_scores`: scores per item, and statistics of them.
- `benchmark_changes`: compares models, paired by item, over seeds, and without items that are in training text.

`adapt.evaluate.compared_models` has the results, as stored in records and shown.
"""
