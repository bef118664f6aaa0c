"""Searches many vectors for nearest neighbours by cosine, exactly or approximately.

Vectors are stored in parts of at most 2^20 vectors. To propose candidates, an index scans all vectors, or uses inverted
lists or a graph that faiss has built. The exact distances of the candidates are then computed from the stored vectors.
If two vectors have the same distance, the vector with the smaller id comes first.

- `exact_search`: stores parts of vectors, searches one part exactly, and merges the results of several parts.
- `index_files`: chooses the kind of index, builds its files, and calls faiss for inverted lists and graphs.
- `vector_index`: searches an index in one process.
- `sharded_index`: searches an index in several processes.
"""
