"""Compares models on domains, compares domains with each other, and draws heatmaps.

Stage `compare` compares held-out losses of models on domains (Don't Stop Pretraining, table 12). Job similarity
compares domains by the words in a sample of each domain, and by the losses of adapted models if there are any (section
3.1 and figure 2).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.feature_extraction.text import CountVectorizer
from transformers import PreTrainedTokenizerBase

from adapt.corpus import sample_order, token_shards
from adapt.evaluate import compared_models, measure_model
from adapt.evaluate.measurements import FEW_DOCUMENTS, Ends, Estimate, Rows, Similar, Unit
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.runner.files import write_atomically
from adapt.statistics import comparison, outcomes
from adapt.support.errors import DataError
from adapt.support.schema import HELDOUT_GLOB, SHARD_GLOB
from adapt.terminal.console import log

FILE, PICTURE = "matrix.json", "matrix.png"
Grid = list[list[Estimate]]


def compare_models(
    evaluations: Mapping[str, Path], domains: Sequence[str], samples: int, folder: Path, unit: Unit = "token"
) -> compared_models.ModelsCompared:
    """Compares the losses of models with the losses of the first model.

    A rise of the loss on text that a model was not adapted to, such as general text, is forgetting.

    `evaluations` are folders of `evaluate` stages, keyed by model. All models were measured on the same documents
    and, if losses are per token, on the same masks. Losses are per byte for models with different tokenizers.
    Writes matrix.json and matrix.png to `folder`.

    Raises:
        DataError: a domain has no held-out text, or losses per byte are needed and the length of a text is not known.
    """
    columns = [(_of_tokens if unit == "token" else _of_bytes)(evaluations, domain, samples) for domain in domains]
    documents = {domain: column.documents for domain, column in zip(domains, columns, strict=True)}
    loss: Grid = [list(row) for row in zip(*(column.loss for column in columns), strict=True)]
    difference: Grid = [list(row) for row in zip(*(column.change for column in columns), strict=True)]
    low, high = _ends(loss)
    change_low, change_high = _ends(difference)
    compared = compared_models.ModelsCompared(
        models=list(evaluations),
        domains=list(domains),
        documents=documents,
        loss=_values(loss),
        loss_low=low,
        loss_high=high,
        change=_values(difference),
        change_low=change_low,
        change_high=change_high,
        unit="nats per token" if unit == "token" else "bits per byte",
    )
    measured = {name: value for name, value in asdict(compared).items() if value}  # empty fields are set later
    write_atomically(folder / FILE, json.dumps(measured, indent=1))
    prefix = "" if unit == "token" else "byte_"
    matrices = {f"{prefix}loss": compared.loss, f"{prefix}change": compared.change}
    draw_heatmap(matrices, domains, folder / PICTURE, compared.models)
    return compared


@dataclass(frozen=True)
class _Column:
    """The losses of all models on one domain."""

    documents: int
    loss: list[Estimate]
    change: list[Estimate]


def _of_tokens(evaluations: Mapping[str, Path], domain: str, samples: int) -> _Column:
    measured = [measure_model.read_losses(evaluation, domain) for evaluation in evaluations.values()]
    first, counts = measured[0]
    _check_size(domain, len(counts))
    loss = [measure_model.mean_loss(losses, counts, samples) for losses, counts in measured]
    return _Column(len(counts), loss, [measure_model.change(first, losses, counts, samples) for losses, _ in measured])


def _of_bytes(evaluations: Mapping[str, Path], domain: str, samples: int) -> _Column:
    """Compares losses per byte on the documents that all models were measured on.

    A sample is limited to a number of tokens, so models with different tokenizers measured different numbers of
    documents.
    """
    measured = [_text_losses(evaluation, domain) for evaluation in evaluations.values()]
    documents = min(len(losses.sizes) for losses in measured)
    _check_size(domain, documents)
    first, *others = common = [losses[:documents] for losses in measured]
    if not all(np.array_equal(first.sizes, other.sizes) for other in others):
        raise DataError(
            f"the models were not measured on the same documents of {domain}",
            "compare models on the same files, with the same corpus.heldout_fraction and evaluation.max_documents",
        )
    changes = [measure_model.byte_change(first, losses, samples) for losses in common]
    return _Column(documents, [measure_model.byte_loss(losses, samples) for losses in common], changes)


def _text_losses(evaluation: Path, domain: str) -> measure_model.TextLosses:
    losses = measure_model.read_text_losses(evaluation, domain)
    if losses is None:
        raise DataError(
            f"models with different tokenizers are compared by bits per byte, but {evaluation} lacks the lengths of"
            f" the texts of {domain}, because an older version of dontstop prepared these texts",
            f"delete {evaluation} and the prepared corpora that it measured (in the folder prepare), and run the job"
            " again",
        )
    return losses


def _check_size(domain: str, documents: int) -> None:
    fix = "raise corpus.heldout_fraction; for a corpus that is not trained on, it may be close to 1"
    if not documents:
        raise DataError(f"{domain} has no held-out text to compare models on", fix)
    if documents < FEW_DOCUMENTS:
        log(f"{domain} has {documents} held-out documents, too few for a reliable interval; {fix}")


def _values(grid: Grid) -> Rows:
    return [[estimate.value for estimate in row] for row in grid]


def _ends(grid: Grid) -> tuple[Ends, Ends]:
    return [[estimate.low for estimate in row] for row in grid], [[estimate.high for estimate in row] for row in grid]


MATRICES = {
    "overlap": "overlap of the top 10,000 words",
    "jaccard": "Jaccard index of all words",
    "cross_loss": "cross loss of a word-frequency model [nats per word]",
    "model_loss": "held-out loss of the models [nats per token]",
    "loss": "held-out loss [nats per token]",
    "change": "loss minus that of the first model [nats per token]",
    "byte_loss": "held-out loss [bits per byte]",
    "byte_change": "loss minus that of the first model [bits per byte]",
}
"""Title of each matrix in the heatmaps."""
SIGNED = ("change", "byte_change")
"""Names of matrices that contain differences. Their colours show the sign."""
FINE = ("byte_loss", "byte_change")
"""Names of matrices with small numbers, which are shown with three digits after the decimal point."""


def draw_heatmap(
    matrices: Mapping[str, Sequence[Sequence[float]]],
    domains: Sequence[str],
    file: Path,
    models: Sequence[str] | None = None,
) -> None:
    """Draws heatmaps next to each other, with numbers in the cells, and writes them as PNG.

    Each matrix has a key in MATRICES, a column per domain, and a row per model, or per domain if `models` is None.
    """
    rows = domains if models is None else models
    width, height = 1.8 + 0.75 * len(domains), 2.3 + 0.75 * len(rows)
    figure = Figure(figsize=(width * len(matrices), height), layout="constrained")
    axes = figure.subplots(1, len(matrices), squeeze=False)
    for axis, (name, matrix) in zip(axes[0], matrices.items(), strict=True):
        _draw_cells(axis, matrix, name in SIGNED, 3 if name in FINE else 2)
        axis.set_xticks(range(len(domains)), domains, rotation=45, ha="right")
        axis.set_yticks(range(len(rows)), rows)
        axis.set_title(fill(MATRICES[name], 30), fontsize=10)
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
    figure.savefig(file, dpi=120)


def _draw_cells(axis: Any, matrix: Sequence[Sequence[float]], signed: bool, digits: int) -> None:
    """Draws colours and numbers of a heatmap. Signed numbers are white at 0, blue below (better) and red above."""
    most = max((abs(value) for values in matrix for value in values), default=0) or 1
    image = axis.imshow(matrix, **({"cmap": "RdBu_r", "vmin": -most, "vmax": most} if signed else {"cmap": "Blues"}))
    for row, values in enumerate(matrix):
        for column, value in enumerate(values):
            depth = image.norm(value)  # position on the colour scale, 0 to 1
            dark = abs(2 * depth - 1) > 0.6 if signed else depth > 0.5
            text = f"{value:{'+' if signed else ''}.{digits}f}"
            axis.text(column, row, text, ha="center", va="center", color="white" if dark else "black", fontsize=9)


def accuracy_changes(neighbours: Mapping[str, Path], samples: int) -> dict[str, dict[str, Estimate]]:
    """Returns each model's change of nearest-neighbour accuracy from the first model, with 95% intervals over texts.

    The changes of the share of right labels are keyed by task and model. There are none if a folder of a stage
    `neighbours` was written by an earlier version, without the results of single texts.
    """
    files = {name: folder / measure_model.HITS_FILE for name, folder in neighbours.items()}
    if not all(file.exists() for file in files.values()):
        return {}
    hits = {name: json.loads(file.read_text()) for name, file in files.items()}
    first, *others = hits or [""]
    return {
        task: {
            name: measure_model.with_interval(np.mean, (np.array(hits[name][task]) - np.array(of_first),), samples)
            for name in others
        }
        for task, of_first in hits.get(first, {}).items()
        if of_first
    }


def paired_change(before: tuple[Path, str], after: tuple[Path, str], samples: int) -> Estimate | None:
    """Returns the change of a text's loss between two evaluations, with its 95% interval over documents.

    `before` and `after` are the folder of an evaluation and the name of the text in it.

    Returns:
        The change in nats per predicted token; None if the evaluations measured different documents or no documents.
    """
    (old, counts), (new, predicted) = measure_model.read_losses(*before), measure_model.read_losses(*after)
    return (
        measure_model.change(old, new, counts, samples) if len(counts) and np.array_equal(counts, predicted) else None
    )


def score_change(start: Sequence[float], end: Sequence[float]) -> Estimate:
    """Returns the change of the mean of two models' scores over seeds, with its 95% interval (`adapt.statistics`)."""
    compared = comparison.compare(outcomes.Tested(np.array(end)), outcomes.Tested(np.array(start)))
    return Estimate(compared.difference, compared.low, compared.high)


SIMILARITY_FILE, SIMILARITY_PICTURE = "similarity.json", "similarity.png"


def compare_domains(
    corpora: Mapping[str, Path], evaluations: Sequence[Path], pretrained: Pretrained, most: int, folder: Path
) -> Similar:
    """Compares domains by their words, and by the losses of adapted models if there are any.

    `evaluations` has the folder of an evaluation on all domains for each domain's model, in the order of `corpora`.
    It is empty if there are no models. Writes similarity.json and similarity.png to `folder`.
    """
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    samples = {name: sample_texts(corpus, tokenizer, most) for name, corpus in corpora.items()}
    similar = similarities(samples)
    if evaluations:
        similar = replace(similar, model_loss=_losses(list(corpora), evaluations))
    measured = {name: value for name, value in asdict(similar).items() if value is not None}
    write_atomically(folder / SIMILARITY_FILE, json.dumps(measured, indent=1))
    matrices = {name: value for name, value in measured.items() if name in MATRICES}
    draw_heatmap(matrices, list(corpora), folder / SIMILARITY_PICTURE)
    return similar


def _losses(domains: Sequence[str], evaluations: Sequence[Path]) -> Rows:
    matrix = []
    for evaluation in evaluations:
        pairs = [measure_model.read_losses(evaluation, domain) for domain in domains]
        matrix.append([float(losses.sum() / max(counts.sum(), 1)) for losses, counts in pairs])
    return matrix


TOP_WORDS = 10_000
"""Number of the most frequent words of each domain that are compared, as in the paper."""
LEAST_DOCUMENTS = 3
"""Only words in at least this many documents count in the Jaccard index, as in the paper's code."""
SMOOTHING = 0.1
"""Pseudocount added to the count of each word of the common vocabulary, so that no probability is 0."""


def sample_texts(folder: Path, tokenizer: PreTrainedTokenizerBase, most: int) -> list[str]:
    """Returns documents of a corpus as text, in a fixed random order. Held-out documents come before others."""
    texts: list[str] = []
    for pattern in (HELDOUT_GLOB, SHARD_GLOB):
        stream = token_shards.TokenStream.open(folder, pattern)
        count = min(stream.documents, most - len(texts))
        numbers = sample_order.permute(np.arange(count), max(stream.documents, 1), 0, 0)
        documents = [stream.document(number).tolist() for number in numbers.tolist()]
        if documents:  # an empty list is skipped, because transformers would decode it to one empty text
            texts += tokenizer.batch_decode(documents, skip_special_tokens=True)
    return texts


def similarities(samples: Mapping[str, Sequence[str]]) -> Similar:
    """Computes the similarity of domains from the words in their samples, keyed by domain."""
    counts = {name: _counts(texts) for name, texts in samples.items()}
    spread = {
        name: {w for w, (_, documents) in words.items() if documents >= LEAST_DOCUMENTS}
        for name, words in counts.items()
    }
    names = list(samples)
    return Similar(
        domains=names,
        documents=[len(texts) for texts in samples.values()],
        overlap=_overlaps([counts[name] for name in names]),
        jaccard=[[len(spread[a] & spread[b]) / max(1, len(spread[a] | spread[b])) for b in names] for a in names],
        cross_loss=_cross_losses([{w: count for w, (count, _) in counts[name].items()} for name in names]),
    )


def _overlaps(counts: Sequence[Mapping[str, tuple[int, int]]]) -> Rows:
    """Returns the shares of the top words that two domains have in common, from the words' counts per domain."""
    top = [set(sorted(words, key=lambda w: (-words[w][0], w))[:TOP_WORDS]) for words in counts]
    return [[len(a & b) / max(1, min(len(a), len(b))) for b in top] for a in top]


def word_overlaps(texts: Mapping[str, Sequence[str]]) -> dict[str, list[float]]:
    """Returns, for each text, the share of its frequent words that are also frequent in each other text.

    All texts are first cut to the same number of words.
    """
    words = min(sum(len(text.split()) for text in documents) for documents in texts.values())
    overlaps = _overlaps([_counts(_first_words(documents, words)) for documents in texts.values()])
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
