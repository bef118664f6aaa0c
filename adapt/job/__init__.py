"""What a user starts: each job is a function that builds its stages from a context.

- `job`: what a job is.
- `registry`: all jobs, by name.
- `run`: carries out one job; `plan`: what it would run.
- `text`: the text of a job, for training and for measuring.
- `general`: the stages that a method asks for before and after a domain.
- `vectors`: the stages that make vectors for selections.
- `chosen`: what a job selects of a pool, or is given as selected.
- `vectors`: the stages that make vectors, for selections that read them.
- `dapt`: adapts a model to a domain.
- `tapt`: adapts a model to the text of a task.
- `select`: selects documents of a pool.
- `domains`: the domains of a sequence, and their tasks.
- `sequence_steps`: the model after each domain, and what is measured of it.
- `merged_domains`: domains that are learnt apart and merged.
- `sequence`: adapts a model to one domain after another.
- `merge`: makes models of others without training.
- `finetune`: teaches a model a task.
- `evaluate`: compares models.
- `similarity`: measures how near domains are.
- `vocabulary`: how the tokenizer breaks words.
- `advise`: says what to run first.
"""
