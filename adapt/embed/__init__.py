"""Computes a vector per text with an embedder, so that texts can be compared by the cosine of their vectors.

- `embedder`: the base class, and the list of embedders.
- `bags`: the embedders `tfidf` and `vampire`, which count words.
- `transformer`: the embedders `static` and `transformer`, which average token vectors.
- `vae`: the topic model of `vampire` and its training.
- `text_chunks`: reads texts with their ids, in chunks, in parallel tasks of the cluster.
- `cluster_embedding`: trains an embedder on a sample of texts, and embeds texts, on the cluster.
- `vector_files`: stores vectors in Parquet files, and builds an index from them.
"""
