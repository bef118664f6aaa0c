"""Computes metrics of a selection and of random documents: similarity to the target, and diversity.

- KL divergence of the target's hashed n-grams from the selection's. KL reduction: how much closer the selected
documents are to the target than random documents are. DSIR (arXiv 2302.03169, section 5) found that this reduction
predicts downstream scores.
- AUC of a new classifier that separates the selection from the target; 0.5 means that it cannot tell them apart. The
  classifier sees windows of a few words, because with whole texts it would separate long texts from short texts.
- Share of words that selection and target have in common (computed as for domains in Don't Stop Pretraining, 3.1).
- Distinct n-grams: the share of distinct word pairs, in samples of the same number of words.
- Mean pairwise distance, and a map of texts in two dimensions. The vector of a text is the TF-IDF of its words, reduced
  by SVD (latent semantic analysis, Deerwester et al. 1990) and scaled to length 1. All sets have the same vocabulary,
  weights and dimensions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.manifold import TSNE
from sklearn.metrics import roc_auc_score

from adapt.config import Config
from adapt.corpus.shingles import hashed, ngrams, normalised, words
from adapt.evaluate.model_matrix import word_overlaps
from adapt.model.locate import Pretrained
from adapt.select import document_losses, gram_regression, grams
from adapt.select.choose import CountTokens

NGRAM, BUCKETS = 2, 10_000
FEATURES = 2**18
"""Number of buckets into which the features of the new classifier are hashed."""
MOST = 4000
"""Maximum number of texts that the new classifier uses from each of the two sets."""
FEWEST = 8
EXCERPT = 400
"""Maximum number of characters that are shown of an example text."""


@dataclass(frozen=True)
class TakenExample:
    """A selected document as an example, with the most similar text of the target."""

    rank: int
    """Rank of the document, from 1."""
    score: float
    text: str
    nearest: str
    cosine: float
    """Cosine of the hashed n-grams of both texts."""


def set_figures(
    sets: Mapping[str, Sequence[str]],
    mixed: Mapping[str, Sequence[str]],
    vectors: Mapping[str, np.ndarray],
    count: CountTokens,
    config: Config,
    pretrained: Pretrained | None,
) -> dict[str, dict[str, Any]]:
    """Returns the metrics of each set of texts, keyed by set and by field of `adapt.stage.select_documents.Nearness`.

    The target is one of the sets. It is not compared with itself, so it only has metrics of diversity and loss.

    `mixed` has the texts of `sets` in random order within each set. If `pretrained` is None, no loss is measured.
    """
    others = [name for name in sets if name != "target"]
    shared = word_overlaps({name: mixed[name] for name in ("target", *others)})["target"]
    overlaps = dict(zip(others, shared, strict=True))
    distinct = dict(zip(sets, distinct_shares(list(mixed.values())), strict=True))
    losses = document_losses.sample_losses(config, pretrained, mixed) if pretrained else {}
    return {
        name: {
            "documents": len(texts),
            "tokens": sum(count(texts)),
            "kl": kl_divergence(sets["target"], texts) if name in overlaps else None,
            "auc": separability(sets["target"], texts, config.seed) if name in overlaps else None,
            "shared_words": overlaps.get(name),
            "distinct": distinct[name],
            "distance": mean_distance(vectors[name]) if name in vectors else None,
            "loss": losses.get(name),
        }
        for name, texts in sets.items()
    }


def kl_divergence(target: Sequence[str], texts: Sequence[str]) -> float:
    """Returns KL(target || texts) of the hashed n-grams [nats], with one gram added to each bucket of the texts."""
    wanted, found = (grams.gram_counts(side, NGRAM, BUCKETS) for side in (target, texts))
    p, q = wanted / max(wanted.sum(), 1), (found + 1) / (found.sum() + BUCKETS)
    seen = p > 0
    return float((p[seen] * np.log(p[seen] / q[seen])).sum())


def separability(target: Sequence[str], texts: Sequence[str], seed: int) -> float | None:
    """Returns the AUC of a logistic regression that separates texts from the target, or None for too few texts.

    The regression is fitted to one half of the texts and tested on the other half. Then the halves are exchanged.
    """
    sides = [in_random_order(side, seed)[:MOST] for side in (target, texts)]
    if min(map(len, sides)) < FEWEST:
        return None
    texts_of_both = [text for side in sides for text in side]
    features, owners = gram_regression.window_matrix(texts_of_both, NGRAM, FEATURES)
    of_target = np.arange(len(texts_of_both)) < len(sides[0])
    places = np.concatenate([np.arange(len(side)) for side in sides])
    weights = gram_regression.equal_text_weights(owners)
    areas = []
    for fold in (0, 1):
        rows = np.flatnonzero(places[owners] % 2 == fold)  # the target's rows come first, as `regression` requires
        found, _ = gram_regression.regression(features[rows], int(of_target[owners[rows]].sum()), 1.0, weights[rows])
        scores = np.bincount(owners, (features @ found) * weights)  # mean score of each text's windows
        other = places % 2 != fold
        areas.append(roc_auc_score(of_target[other], scores[other]))
    return float(np.mean(areas))


def distinct_shares(samples: Sequence[Sequence[str]]) -> list[float]:
    """Returns the share of distinct word pairs in each sample.

    The same number of word pairs is taken from the beginning of each sample.
    """
    pairs = [_pairs(texts) for texts in samples]
    most = min(map(len, pairs))
    return [len(np.unique(runs[:most])) / max(most, 1) for runs in pairs]


def examples(taken: Sequence[str], scores: Sequence[float], target: Sequence[str], count: int) -> list[TakenExample]:
    """Returns examples of the selected documents.

    One half of the examples are the best documents. The other half is spread evenly over the ranking.

    All documents are examples if there are fewer than `count`.
    """
    best = min(count // 2, len(taken))
    spread = np.linspace(best, len(taken) - 1, min(count, len(taken)) - best).round().astype(int).tolist()
    ranks = [*range(best), *spread]
    mine, theirs = (gram_regression.gram_matrix(side, NGRAM, FEATURES) for side in ([taken[n] for n in ranks], target))
    alike = (mine @ theirs.T).toarray()
    return [
        TakenExample(
            rank + 1,
            float(scores[rank]),
            taken[rank][:EXCERPT],
            target[int(row.argmax())][:EXCERPT],
            round(float(row.max()), 4),
        )
        for rank, row in zip(ranks, alike, strict=True)
    ]


def in_random_order(texts: Sequence[str], seed: int) -> list[str]:
    """Returns the texts in an order that depends only on the seed and their number."""
    return [texts[place] for place in np.random.default_rng(seed).permutation(len(texts))]


def _pairs(texts: Sequence[str]) -> np.ndarray:
    found = [ngrams(hashed(words(normalised(text))), 2) for text in texts]
    return np.concatenate([np.zeros(0, np.uint64), *found])


DIMENSIONS = 50
SAMPLE, CHARACTERS = 1000, 2000
"""Maximum number of texts per set that get a vector, and number of characters that are read from each text."""
WORDS = 20_000
"""Size of the vocabulary: the most frequent words that occur in at least two texts."""
MAPPED = 200
"""Maximum number of texts per set that are shown on the map."""
NEIGHBOURS = 30
"""Perplexity of t-SNE: approximate number of neighbours that determine a text's position on the map."""
STEPS = 500
"""Number of optimization steps of the map."""
FEWEST_VECTORS = 12
"""Minimum number of texts for which vectors are computed."""


def word_vectors(samples: Mapping[str, Sequence[str]], seed: int) -> dict[str, np.ndarray]:
    """Returns the vectors of the first SAMPLE texts of each set, float64 [texts, d], of length 1.

    A text that shares no word with another text gets no vector. If there is too little text, the result is empty.
    """
    looked_at = {name: [text[:CHARACTERS] for text in texts[:SAMPLE]] for name, texts in samples.items()}
    vectorizer = TfidfVectorizer(min_df=2, max_features=WORDS, sublinear_tf=True)
    try:
        counts = vectorizer.fit_transform(chain.from_iterable(looked_at.values()))
    except ValueError:  # no word occurs in two texts
        return {}
    dimensions = min(DIMENSIONS, *(size - 1 for size in counts.shape))
    if counts.shape[0] < FEWEST_VECTORS or dimensions < 2:
        return {}
    vectors = TruncatedSVD(dimensions, random_state=seed % 2**32).fit_transform(counts)
    lengths = np.linalg.norm(vectors, axis=1)
    bounds = np.cumsum([len(texts) for texts in looked_at.values()])[:-1]
    parts = zip(looked_at, np.split(vectors, bounds), np.split(lengths, bounds), strict=True)
    return {name: rows[sizes > 0] / sizes[sizes > 0, None] for name, rows, sizes in parts}


def mean_distance(vectors: np.ndarray) -> float | None:
    """Returns the mean of 1 - cosine over all pairs of vectors [n, d] of length 1. None for fewer than two vectors."""
    number = len(vectors)
    if number < 2:
        return None
    total = vectors.sum(0)
    return float(1 - (total @ total - number) / (number * (number - 1)))


def map_places(vectors: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Returns map positions [texts, 2] of the first MAPPED texts of each set (t-SNE, van der Maaten and Hinton 2008).

    Similar texts lie close together. Distances between groups, and their sizes, mean little.
    """
    if not vectors:
        return {}
    shown = {name: rows[:MAPPED] for name, rows in vectors.items()}
    rows = np.concatenate(list(shown.values()))
    perplexity = min(NEIGHBOURS, (len(rows) - 1) / 3)
    found = TSNE(perplexity=perplexity, max_iter=STEPS, init="pca", random_state=seed % 2**32).fit_transform(rows)
    bounds = np.cumsum([len(part) for part in shown.values()])[:-1]
    return dict(zip(shown, np.split(found, bounds), strict=True))
