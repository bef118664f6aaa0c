"""Nearest neighbours by cosine among many vectors, exact or nearly so, in parts of bounded size.

An index proposes, the vectors decide: whatever finds candidates (a scan of all vectors, inverted lists, a graph), their
distances are computed from the vectors themselves, exactly, and ties go to the smaller id.

- `parts`: vectors and ids of a part as mapped files, and exact distances.
- `exact_search`: the nearest among all vectors, on the CPU or a GPU, and of several parts.
- `index_kinds`: which kind of index to use; inverted lists and graphs by faiss.
- `index_files`: builds the files of an index from a stream of vectors.
- `vector_index`: searches an index, on one process or several.
"""
