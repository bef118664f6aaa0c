"""Kinds of stages, one a file. Each is a frozen dataclass: its fields are its settings and the stages that it reads.

- `context`: what the stages of a job are made from.
- `text/`: from files to token shards.
- `selecting/`: the part of a pool that is worth training on.
- `length`: how long a training is; `train`: a training; `export`: its model.
- `domains/`: what comes after each domain of a sequence.
- `merge`: models made of others.
- `task`, `finetune`: a labelled task, and a model that is taught it.
- `measuring/`: what models are measured by.
- `running`: runs the stages of a chain.
"""
