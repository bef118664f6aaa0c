"""Where texts lie: vectors of some of each set, how far apart these are, and a map of them in two dimensions.

A vector is the TF-IDF of a text's words, reduced by SVD (latent semantic analysis, Deerwester et al. 1990) and of
length 1. All sets share words, weights and dimensions, so that their vectors can be compared.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

DIMENSIONS = 50
SAMPLE, CHARACTERS = 1000, 2000
"""Texts of a set that get a vector, and how much of the beginning of each is read."""
WORDS = 20_000
"""The most frequent words, of those that stand in two texts at least, count."""
MAPPED = 200
"""Texts of a set that are on the map."""
NEIGHBOURS = 30
"""About so many texts around each count for its place on the map (t-SNE's perplexity)."""
STEPS = 500
"""How long the map is sought."""
FEWEST = 12
"""Fewer texts than these have no vectors."""


def word_vectors(samples: Mapping[str, Sequence[str]], seed: int) -> dict[str, np.ndarray]:
    """The vectors of the first SAMPLE texts of each set, float64 [texts, d], of length 1.

    Texts without a word that another has too get none; and no text does where there is too little of all.

    Args:
        samples: texts by name, in random order.
        seed: of the SVD.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    looked_at = {name: [text[:CHARACTERS] for text in texts[:SAMPLE]] for name, texts in samples.items()}
    vectorizer = TfidfVectorizer(min_df=2, max_features=WORDS, sublinear_tf=True)
    try:
        counts = vectorizer.fit_transform(chain.from_iterable(looked_at.values()))
    except ValueError:  # no word stands in two texts
        return {}
    dimensions = min(DIMENSIONS, *(size - 1 for size in counts.shape))
    if counts.shape[0] < FEWEST or dimensions < 2:
        return {}
    vectors = TruncatedSVD(dimensions, random_state=seed % 2**32).fit_transform(counts)
    lengths = np.linalg.norm(vectors, axis=1)
    bounds = np.cumsum([len(texts) for texts in looked_at.values()])[:-1]
    parts = zip(looked_at, np.split(vectors, bounds), np.split(lengths, bounds), strict=True)
    return {name: rows[sizes > 0] / sizes[sizes > 0, None] for name, rows, sizes in parts}


def mean_distance(vectors: np.ndarray) -> float | None:
    """The mean of 1 - cosine over all pairs of different rows [n, d], which have length 1; None for fewer than two."""
    number = len(vectors)
    if number < 2:
        return None
    total = vectors.sum(0)
    return float(1 - (total @ total - number) / (number * (number - 1)))


def map_places(vectors: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Places of the first MAPPED texts of each set on one map [texts, 2], by t-SNE (van der Maaten and Hinton 2008).

    Texts that are alike lie together; distances between groups, and their sizes, mean little.

    Args:
        vectors: of length 1, by name.
        seed: of the map.
    """
    from sklearn.manifold import TSNE

    if not vectors:
        return {}
    shown = {name: rows[:MAPPED] for name, rows in vectors.items()}
    rows = np.concatenate(list(shown.values()))
    perplexity = min(NEIGHBOURS, (len(rows) - 1) / 3)
    found = TSNE(perplexity=perplexity, max_iter=STEPS, init="pca", random_state=seed % 2**32).fit_transform(rows)
    bounds = np.cumsum([len(part) for part in shown.values()])[:-1]
    return dict(zip(shown, np.split(found, bounds), strict=True))
