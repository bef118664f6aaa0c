"""How coherent topics are: do their words stand in the same documents?"""

from itertools import combinations
from typing import Any

import numpy as np

TOP_WORDS_OF_TOPIC = 10


def mean_npmi(topics: np.ndarray, counts: Any, most: int = TOP_WORDS_OF_TOPIC) -> float:
    """The mean normalized pointwise mutual information (Bouma 2009) of the pairs of each topic's first words.

    NPMI(v, w) = log(p(v, w) / (p(v) p(w))) / -log p(v, w), p being shares of documents. Pairs that never meet count 0,
    as in VAMPIRE's code (the limit is -1), and so do pairs that stand in every document.

    Args:
        topics: weights [topics, words].
        counts: of the words of documents, sparse [documents, words].
        most: first words of a topic.
    """
    first = np.argsort(-topics, axis=1, kind="stable")[:, :most]
    words, places = np.unique(first, return_inverse=True)
    present = (counts[:, words] > 0).astype(np.float64)
    together = np.asarray((present.T @ present).todense())
    share, joint = np.diag(together) / counts.shape[0], together / counts.shape[0]
    usual = np.outer(share, share)
    told = (joint > 0) & (joint < 1)
    npmi = np.zeros_like(joint)
    npmi[told] = np.log(joint[told] / usual[told]) / -np.log(joint[told])
    pairs = np.array(list(combinations(range(first.shape[1]), 2)))
    of_topics = places.reshape(first.shape)
    return float(npmi[of_topics[:, pairs[:, 0]], of_topics[:, pairs[:, 1]]].mean())
