"""Nearest neighbours by cosine among many vectors, exact or nearly so, in parts of bounded size.

An index proposes, the vectors decide: whatever finds candidates (a scan of all vectors, inverted lists, a graph), their
distances are computed from the vectors themselves, exactly, and ties go to the smaller id.

- `rows`: rows of length 1, and exact distances between them.
- `part`: vectors and ids of a part, as files that are mapped and not read.
- `merge`: the nearest of several parts.
- `scan`: the nearest among all, on the CPU or a GPU.
- `plan`: which kind of index suits so many vectors.
- `propose`: inverted lists and graphs, by faiss.
- `build`: the files of an index, from a stream of vectors.
- `search`: the index as it is asked.
- `recall`: what share of the nearest it finds, and how widely it must search for that.
- `shards`: the parts on several processes of a cluster.
"""
