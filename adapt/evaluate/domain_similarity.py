"""Compares domains by the words in a sample of each domain, and by the losses of adapted models if there are any.

The comparison follows Don't Stop Pretraining, section 3.1 and figure 2.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from transformers import PreTrainedTokenizerBase

from adapt.corpus.sample_order import permute
from adapt.corpus.token_shards import TokenStream
from adapt.evaluate.measure_model import read_losses
from adapt.evaluate.measurements import Rows, Similar
from adapt.evaluate.model_matrix import MATRICES, draw_heatmap
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.runner.files import write_atomically
from adapt.support.schema import HELDOUT_GLOB, SHARD_GLOB

FILE, PICTURE = "similarity.json", "similarity.png"


def compare_domains(
    corpora: Mapping[str, Path], evaluations: Sequence[Path], pretrained: Pretrained, most: int, folder: Path
) -> Similar:
    """Compares domains by their words, and by the losses of adapted models if there are any.

    Args:
        corpora: folders of prepared corpora, keyed by domain.
        evaluations: folders of evaluations, one per domain's model, in the order of `corpora`. Each evaluation covers
            all domains. Empty if there are no models.
        pretrained: the model whose tokenizer decodes the documents.
        most: largest number of documents per domain that are compared.
        folder: the folder in which similarity.json and similarity.png are written.
    """
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    samples = {name: sample_texts(corpus, tokenizer, most) for name, corpus in corpora.items()}
    similar = similarities(samples)
    if evaluations:
        similar = replace(similar, model_loss=_losses(list(corpora), evaluations))
    measured = {name: value for name, value in asdict(similar).items() if value is not None}
    write_atomically(folder / FILE, json.dumps(measured, indent=1))
    matrices = {name: value for name, value in measured.items() if name in MATRICES}
    draw_heatmap(matrices, list(corpora), folder / PICTURE)
    return similar


def _losses(domains: Sequence[str], evaluations: Sequence[Path]) -> Rows:
    matrix = []
    for evaluation in evaluations:
        pairs = [read_losses(evaluation, domain) for domain in domains]
        matrix.append([float(losses.sum() / max(counts.sum(), 1)) for losses, counts in pairs])
    return matrix


TOP_WORDS = 10_000
"""Number of the most frequent words of each domain that are compared, as in the paper."""
LEAST_DOCUMENTS = 3
"""Smallest number of documents in which a word must occur to count in the Jaccard index, as in the paper's code."""
SMOOTHING = 0.1
"""Number that is added to the count of each word of the common vocabulary, so that no probability is 0."""


def sample_texts(folder: Path, tokenizer: PreTrainedTokenizerBase, most: int) -> list[str]:
    """Returns documents of a corpus as text, in a fixed random order. Held-out documents come before others."""
    texts: list[str] = []
    for pattern in (HELDOUT_GLOB, SHARD_GLOB):
        stream = TokenStream.open(folder, pattern)
        count = min(stream.documents, most - len(texts))
        numbers = permute(np.arange(count), max(stream.documents, 1), 0, 0)
        documents = [stream.document(number).tolist() for number in numbers.tolist()]
        if documents:  # an empty list is skipped, because transformers would decode it to one empty text
            texts += tokenizer.batch_decode(documents, skip_special_tokens=True)
    return texts


def similarities(samples: Mapping[str, Sequence[str]]) -> Similar:
    """Computes the similarity of domains from the words in their samples, keyed by domain."""
    counts = {name: _counts(texts) for name, texts in samples.items()}
    top = {name: set(sorted(words, key=lambda w: (-words[w][0], w))[:TOP_WORDS]) for name, words in counts.items()}
    spread = {
        name: {w for w, (_, documents) in words.items() if documents >= LEAST_DOCUMENTS}
        for name, words in counts.items()
    }
    names = list(samples)
    return Similar(
        domains=names,
        documents=[len(texts) for texts in samples.values()],
        overlap=[[len(top[a] & top[b]) / max(1, min(len(top[a]), len(top[b]))) for b in names] for a in names],
        jaccard=[[len(spread[a] & spread[b]) / max(1, len(spread[a] | spread[b])) for b in names] for a in names],
        cross_loss=_cross_losses([{w: count for w, (count, _) in counts[name].items()} for name in names]),
    )


def word_overlaps(texts: Mapping[str, Sequence[str]]) -> dict[str, list[float]]:
    """Returns, for each text, the share of its frequent words that are also frequent in each other text.

    All texts are first cut to the same number of words.
    """
    words = min(sum(len(text.split()) for text in documents) for documents in texts.values())
    overlaps = similarities({name: _first_words(documents, words) for name, documents in texts.items()}).overlap
    return {
        name: [share for column, share in enumerate(row) if column != number]
        for number, (name, row) in enumerate(zip(texts, overlaps, strict=True))
    }


def _first_words(texts: Sequence[str], most: int) -> list[str]:
    chosen = []
    for text in texts:
        if most <= 0:
            break
        words = text.split()[:most]
        chosen.append(" ".join(words))
        most -= len(words)
    return chosen


def _counts(texts: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Returns, for each word except stop words, the number of occurrences and the number of documents with the word."""
    vectorizer = CountVectorizer(stop_words="english")
    try:
        table = vectorizer.fit_transform(texts)
    except ValueError:  # raised if all words are stop words
        return {}
    words, occurrences, documents = vectorizer.get_feature_names_out(), table.sum(0).A1, (table > 0).sum(0).A1
    return {str(w): (int(n), int(d)) for w, n, d in zip(words, occurrences, documents, strict=True)}


def _cross_losses(counts: list[dict[str, int]]) -> Rows:
    vocabulary = sorted(set().union(*counts))
    smoothed = np.array(
        [[frequencies.get(word, 0) + SMOOTHING for word in vocabulary] for frequencies in counts]
    ).reshape(len(counts), -1)
    shares = smoothed / smoothed.sum(1, keepdims=True)
    own = (shares * np.log(shares)).sum(1)
    matrix: Rows = (own[None, :] - np.log(shares) @ shares.T).clip(min=0.0).tolist()
    return matrix
