"""Stages that find the part of a pool that is worth training on.

- `target`: the text that documents should resemble.
- `enough`: whether a pool has enough documents for all neighbours that are wanted.
- `embedding`: what is embedded, and by what; `learn_embedder`, `embed`: the stages that do it.
- `index`: the vectors, made ready to be searched; `vectors`: all of these, for a selection.
- `select`: the documents; `selection`: what they gained.
"""
