"""Searches many vectors for nearest neighbours by cosine, exactly or approximately. Vectors lie in parts of fixed size.

The index only proposes candidates, by a scan of all vectors, inverted lists or a graph. The distances of candidates are
then computed exactly from the vectors themselves. If two vectors have the same distance, the smaller id comes first.

- `exact_search`: memory-mapped parts of vectors, exact search in a part, and merging the results of several parts.
- `index_kinds`: chooses the kind of index; inverted lists and graphs by faiss.
- `index_files`: builds the files of an index from a stream of vectors.
- `vector_index`: searches an index, in one process or in several.
"""
