"""How forgetting is fought: what a method adds to plain training.

`base` has the hooks, `setting` what they are told, `table` says which methods there are; each is a file or a folder of
its own. `sets` is what those share whose models get parts for each domain, `notes` what reports show of a method;
`gather` is for losses that look beyond a rank's own documents, `pull` for penalties on weights, `measuring` for stages
that measure a model.
"""
