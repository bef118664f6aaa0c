"""Kinds of stages, one a file. Each is a frozen dataclass: its fields are its settings and the stages that it reads.

- `context`: what the stages of a job are made from.
- `text/`: from files to token shards.
- `selecting/`: the part of a pool that is worth training on.
- `dimensions`: how large the model is that a stage begins with; `length`: how long a training is.
- `measurable`: whether enough text is held out to measure a training.
- `train`: a training; `export`: its model.
- `domains/`: what comes after each domain of a sequence.
- `merge`: models made of others.
- `task`, `finetune`: a labelled task, and a model that is taught it.
- `evaluate`: a model's loss on held-out text; `compare`: those of several models.
- `perplexity`: of a text, predicted word by word.
- `neighbours`: how often nearest neighbours have one label; `scores`: what a model scores on a task, over all seeds.
- `vocabulary/`: how words are broken into tokens.
- `evidence`: what is seen in samples of texts and in tasks, for advice.
- `running`: runs the stages of a chain.
"""
