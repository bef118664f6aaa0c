"""Embedders: a vector for each text, so that texts can be compared by the cosine of their vectors.

- `embedder`: the base class, and the list of embedders.
- `tfidf`, `static`, `transformer`, `vampire`: one embedder each, the cheapest first.
- `vae`: the topic model of `vampire` and its training.
- `text_chunks`: texts with their ids, in chunks that tasks read.
- `learn`: trains an embedder on a sample, on the cluster.
- `cluster_embedding`: embeds texts on the cluster.
- `vector_files`: vectors as Parquet files, and an index built from them.
"""
