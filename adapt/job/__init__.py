"""The jobs that users start. Each job is a function that builds its stages from a context.

- `job_run`: runs and plans jobs.
- `registry`: the table of all jobs, keyed by name.
- `job_text`: prepares the text of a job, for training and for measuring.
- `training_jobs`: dapt, tapt, finetune.
- `selection_job`: select, and the selection of documents for other jobs.
- `sequence_steps`, `sequence_job`: sequence, which adapts a model to one domain after another.
- `merge_job`: merge, which combines models without training.
- `measuring_jobs`: evaluate, similarity, advise, which measure models and text.
- `vocabulary_job`: vocabulary, which measures how the tokenizer splits words, and changes the vocabulary.
"""
