"""Clusters of duplicates from pairs: connected components, of which the first document in stream order is kept."""

import numpy as np


def clusters(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The documents that stand in some pair, each with the first of its cluster.

    A document is in one cluster with all that it can be linked to through pairs (union-find; SciPy's connected
    components). The result is the same for any order of the pairs.

    Args:
        pairs: numbers of documents, int64 [pairs, 2].

    Returns:
        documents in order, and the first document of each one's cluster: int64 [documents] each.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    documents, places = np.unique(pairs, return_inverse=True)
    places = places.reshape(-1, 2)
    size = len(documents)
    graph = coo_array((np.ones(len(places), bool), (places[:, 0], places[:, 1])), shape=(size, size))
    _, labels = connected_components(graph, directed=False) if size else (0, np.zeros(0, np.int64))
    _, first = np.unique(labels, return_index=True)  # documents are in order, so a label's first one is its smallest
    return documents, documents[first[labels]] if size else documents


def reduced(pairs: np.ndarray) -> np.ndarray:
    """The fewest pairs with the same clusters: each document with the first of its cluster, int64 [pairs, 2]."""
    documents, first = clusters(pairs)
    linked = documents != first
    return np.stack([first[linked], documents[linked]], axis=1)
