"""Metrics of a selection, compared with random documents: similarity to the target, and diversity.

- KL divergence of the target's hashed n-grams from the selection's. KL reduction says how much closer the selected
  documents are to the target than random documents are. DSIR (arXiv 2302.03169, section 5) found that it predicts
  downstream scores.
- AUC of a new classifier that separates the selection from the target; 0.5 means that it cannot. It sees windows of a
  few words, because otherwise it would separate long documents from short texts.
- Shared words, as between domains (Don't Stop Pretraining, section 3.1).
- Distinct n-grams: the share of word pairs that are different, in samples of as many words.
- Mean pairwise distance, and a map of texts in two dimensions. The vector of a text is the TF-IDF of its words, reduced
  by SVD (latent semantic analysis, Deerwester et al. 1990) to length 1. All sets share words, weights and dimensions.
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
from adapt.evaluate.domain_similarity import word_overlaps
from adapt.model.locate import Pretrained
from adapt.select.choose import CountTokens
from adapt.select.document_losses import sample_losses
from adapt.select.gram_regression import equal_text_weights, gram_matrix, regression, window_matrix
from adapt.select.grams import gram_counts

NGRAM, BUCKETS = 2, 10_000
FEATURES = 2**18
"""Buckets of the fresh classifier's features."""
MOST = 4000
"""Texts of a side that the fresh classifier sees."""
FEWEST = 8
EXCERPT = 400
"""Characters of an example."""


@dataclass(frozen=True)
class TakenExample:
    """A document that was taken, to be read, beside the text of the target that it is most like."""

    rank: int
    """1 was taken first."""
    score: float
    text: str
    nearest: str
    cosine: float
    """How alike the hashed n-grams of both are."""


def set_figures(
    sets: Mapping[str, Sequence[str]],
    mixed: Mapping[str, Sequence[str]],
    vectors: Mapping[str, np.ndarray],
    count: CountTokens,
    config: Config,
    pretrained: Pretrained | None,
) -> dict[str, dict[str, Any]]:
    """Figures of each set of texts, by the names of `adapt.stage.judge_selection.Nearness`.

    The target is one of the sets. It is not compared with itself, so it only has figures of diversity and loss.

    Args:
        sets: texts by name, with `target`.
        mixed: the same in random order.
        vectors: of some of them.
        count: the numbers of tokens of texts.
        config: of the job.
        pretrained: the model whose loss is measured; None for no model.
    """
    others = [name for name in sets if name != "target"]
    shared = word_overlaps({name: mixed[name] for name in ("target", *others)})["target"]
    overlaps = dict(zip(others, shared, strict=True))
    distinct = dict(zip(sets, distinct_shares(list(mixed.values())), strict=True))
    losses = sample_losses(config, pretrained, mixed) if pretrained else {}
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
    """KL(target || texts) of the distributions of hashed n-grams [nats]; the texts have a gram more in each bucket."""
    wanted, found = (gram_counts(side, NGRAM, BUCKETS) for side in (target, texts))
    p, q = wanted / max(wanted.sum(), 1), (found + 1) / (found.sum() + BUCKETS)
    seen = p > 0
    return float((p[seen] * np.log(p[seen] / q[seen])).sum())


def separability(target: Sequence[str], texts: Sequence[str], seed: int) -> float | None:
    """AUC of logistic regression that tells texts from the target, in two folds; None where one side has too few.

    Args:
        target: texts.
        texts: those to tell from them.
        seed: decides which texts are looked at, where there are many.
    """
    sides = [in_random_order(side, seed)[:MOST] for side in (target, texts)]
    if min(map(len, sides)) < FEWEST:
        return None
    texts_of_both = [text for side in sides for text in side]
    features, owners = window_matrix(texts_of_both, NGRAM, FEATURES)
    of_target = np.arange(len(texts_of_both)) < len(sides[0])
    places = np.concatenate([np.arange(len(side)) for side in sides])
    weights = equal_text_weights(owners)
    areas = []
    for fold in (0, 1):
        rows = np.flatnonzero(places[owners] % 2 == fold)  # those of the target come first
        found, _ = regression(features[rows], int(of_target[owners[rows]].sum()), 1.0, weights[rows])
        scores = np.bincount(owners, (features @ found) * weights)  # the mean over a text's windows
        other = places % 2 != fold
        areas.append(roc_auc_score(of_target[other], scores[other]))
    return float(np.mean(areas))


def distinct_shares(samples: Sequence[Sequence[str]]) -> list[float]:
    """The share of word pairs that are different in each sample, among as many pairs of each: its first ones."""
    pairs = [_pairs(texts) for texts in samples]
    most = min(map(len, pairs))
    return [len(np.unique(runs[:most])) / max(most, 1) for runs in pairs]


def examples(taken: Sequence[str], scores: Sequence[float], target: Sequence[str], count: int) -> list[TakenExample]:
    """Documents to read: half of them the best, the others from all over the ranking.

    Args:
        taken: the best first.
        scores: of each.
        target: texts.
        count: how many, or all where there are fewer.
    """
    best = min(count // 2, len(taken))
    spread = np.linspace(best, len(taken) - 1, min(count, len(taken)) - best).round().astype(int).tolist()
    ranks = [*range(best), *spread]
    mine, theirs = (gram_matrix(side, NGRAM, FEATURES) for side in ([taken[n] for n in ranks], target))
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
    """The same texts in an order that hangs on the seed and their number alone."""
    return [texts[place] for place in np.random.default_rng(seed).permutation(len(texts))]


def _pairs(texts: Sequence[str]) -> np.ndarray:
    found = [ngrams(hashed(words(normalised(text))), 2) for text in texts]
    return np.concatenate([np.zeros(0, np.uint64), *found])


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
FEWEST_VECTORS = 12
"""Fewer texts than these have no vectors."""


def word_vectors(samples: Mapping[str, Sequence[str]], seed: int) -> dict[str, np.ndarray]:
    """The vectors of the first SAMPLE texts of each set, float64 [texts, d], of length 1.

    Texts without a word that another has too get none; and no text does where there is too little of all.

    Args:
        samples: texts by name, in random order.
        seed: of the SVD.
    """
    looked_at = {name: [text[:CHARACTERS] for text in texts[:SAMPLE]] for name, texts in samples.items()}
    vectorizer = TfidfVectorizer(min_df=2, max_features=WORDS, sublinear_tf=True)
    try:
        counts = vectorizer.fit_transform(chain.from_iterable(looked_at.values()))
    except ValueError:  # no word stands in two texts
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
    if not vectors:
        return {}
    shown = {name: rows[:MAPPED] for name, rows in vectors.items()}
    rows = np.concatenate(list(shown.values()))
    perplexity = min(NEIGHBOURS, (len(rows) - 1) / 3)
    found = TSNE(perplexity=perplexity, max_iter=STEPS, init="pca", random_state=seed % 2**32).fit_transform(rows)
    bounds = np.cumsum([len(part) for part in shown.values()])[:-1]
    return dict(zip(shown, np.split(found, bounds), strict=True))
