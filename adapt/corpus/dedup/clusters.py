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


def kept_apart(
    firsts: np.ndarray, sources: np.ndarray, heldout: np.ndarray, before: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which documents of clusters leave, so that none has a copy beside it, or a copy on the other side before it.

    Documents of the first `before` sources all stay. A document of a later source leaves as a duplicate if it is not
    the first of the later ones in its cluster. A training document of a later source also leaves if its cluster holds
    a held-out document of a first source, and the other way round.

    Args:
        firsts: the first document of each one's cluster, for documents in stream order, int64 [documents].
        sources: of each, int64 [documents].
        heldout: whether it is, bool [documents].
        before: how many sources come first.

    Returns:
        Which are duplicates and which have a copy on the other side: bool [documents] each.
    """
    _, clusters = np.unique(firsts, return_inverse=True)
    mine, size = sources >= before, int(clusters.max(initial=-1)) + 1
    _, kept = np.unique(clusters[mine], return_index=True)
    duplicate = mine.copy()
    duplicate[np.flatnonzero(mine)[kept]] = False
    beside = np.zeros((2, size), bool)
    beside[heldout[~mine].astype(np.int64), clusters[~mine]] = True
    return duplicate, mine & beside[1 - heldout.astype(np.int64), clusters]


def reduced(pairs: np.ndarray) -> np.ndarray:
    """The fewest pairs with the same clusters: each document with the first of its cluster, int64 [pairs, 2]."""
    documents, first = clusters(pairs)
    linked = documents != first
    return np.stack([first[linked], documents[linked]], axis=1)
