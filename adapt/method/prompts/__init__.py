"""Vectors that are learnt in place of text, for each domain or for all, while the model stays as it is.

`prompt` puts them before the first word of a document, `prefix` among the keys and values of every layer.
"""
