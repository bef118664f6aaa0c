"""What a user starts: each job is a function that builds its stages from a context.

- `job_run`: what a job is, how it runs, and what it would run.
- `registry`: all jobs, by name.
- `job_text`: the text of a job, for training and for measuring.
- `training_jobs`: dapt, tapt, finetune.
- `selection_job`: select, and what other jobs select of a pool.
- `sequence_steps`, `sequence_job`: sequence, which adapts a model to one domain after another.
- `merge_job`: merge, which makes models of others without training.
- `measuring_jobs`: evaluate, similarity, advise.
- `vocabulary_job`: vocabulary, which looks at how the tokenizer breaks words, and changes it.
"""
