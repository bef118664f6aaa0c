"""Search for good values of fields, by trials.

- `space`: a file as fields and Ray Tune's domains.
- `check`: a space held to the schema, and to what is measured.
- `trial`: a job with some values, measured on dev.
- `propose`: which values a trial has, a function of its number and of the trials before.
- `turns`: how a trial is judged on its way, and goes on.
- `tpe`: proposals that learn.
- `search_run`: runs a search and what follows from it.
- `search`: the stage that holds all trials.
- `ahead`: what they will take.
- `place`: whether a cluster can hold one.
- `fitting`: micro-batches of trials that ran out of memory.
- `trials`: their stages, as one heap of work.
- `watched`: these as a table on a terminal.
- `tracked`: these in MLflow and TensorBoard.
- `dispatch`: Ray Tune, which asks for trials.
- `confirm`: the stage that runs the best of them with fresh seeds, and tests it.
- `values`: the values of a trial in names and files.
- `front`: the trials that none is better than.
- `command`: the command line of dontstop tune.
"""
