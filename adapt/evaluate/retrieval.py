"""Measures sentence vectors by retrieval, and their isotropy.

Documents are ranked by the cosine similarity of their vectors to the query's vector. Among documents with the same
similarity, relevant texts rank last, so a model with equal vectors for all texts scores low. The texts and their order
depend only on the files, so two models are measured on the same queries and documents.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from adapt.config import Config, EvaluationConfig, RetrievalConfig
from adapt.corpus.files.formats import Bad
from adapt.corpus.files.manifest import expand_paths
from adapt.corpus.files.records import Reading, read_objects, read_records
from adapt.corpus.sample_order import permute
from adapt.evaluate.measure_model import call_on_device, with_interval
from adapt.evaluate.measurements import MEASURES, MeasureChange, RetrievalChange, Retrieved
from adapt.model.locate import Pretrained
from adapt.model.sentence_vectors import FEATURES
from adapt.ray.runtime import hide_unreserved_gpus
from adapt.runner import Finished
from adapt.runner.files import write_atomically
from adapt.support.errors import DataError
from adapt.terminal.console import log

FIRST = 10
"""Number of top-ranked documents that count for recall@10 and nDCG@10."""
QUERIES_FILE = "queries.json"
"""File with the measures of each query, in the order of the sample."""
SEED = 0
"""Fixed seed of samples, so that the measures of different runs can be compared."""


@dataclass(frozen=True)
class PairSearch:
    """The queries and documents of a retrieval measurement."""

    queries: list[str]
    documents: list[str]
    relevant: list[list[int]]
    """For each query, the indices of its relevant documents."""
    left_out: dict[str, int]
    """Number of rows that were left out, keyed by reason."""


def check_pairs(retrieval: RetrievalConfig) -> None:
    """Reads the pairs up to the first usable row. Refuses files without one, and files whose first row lacks a field.

    Raises:
        ConfigError, DataError: see `read_search`.
        StorageError: a store failed repeatedly.
    """
    if not any(isinstance(row, tuple) for row in _rows(retrieval)):
        raise no_pairs(retrieval)
    if retrieval.corpus:
        next(_corpus(retrieval), None)


def no_pairs(retrieval: RetrievalConfig, left_out: Mapping[str, int] | None = None) -> DataError:
    """Returns the error for files without a usable pair."""
    reasons = ", ".join(f"{count} rows: {reason}" for reason, count in (left_out or {}).items())
    return DataError(
        f"retrieval.pairs {retrieval.pairs} contains no usable pair{f' ({reasons})' if reasons else ''}",
        f"give each row a query in the field {retrieval.query_field!r} and a relevant text in"
        f" {retrieval.positive_field!r} (retrieval.query_field, retrieval.positive_field)",
    )


def read_search(retrieval: RetrievalConfig) -> PairSearch:
    """Reads the pairs and the corpus, and draws fixed samples of queries and documents.

    Raises:
        ConfigError: no file is named.
        DataError: a file is missing or broken, its first readable row lacks a field, or no row is usable.
        StorageError: a store failed repeatedly.
    """
    left_out: Counter[str] = Counter()
    found: dict[str, dict[str, None]] = {}
    for row in _rows(retrieval):
        if isinstance(row, Bad):
            left_out[str(row)] += 1
            continue
        query, positives = row
        known = found.setdefault(query, {})
        left_out.update({"repeated": sum(text in known for text in positives)})
        known.update(dict.fromkeys(positives))
    left_out += Counter()  # drops counts of 0
    if not found:
        raise no_pairs(retrieval, left_out)
    if left_out:
        log(f"retrieval: rows left out: {', '.join(f'{count} {reason}' for reason, count in left_out.items())}")
    queries = _sampled(list(found), retrieval.max_queries)
    needed = dict.fromkeys(text for query in queries for text in found[query])
    others = dict.fromkeys(text for positives in found.values() for text in positives)
    others |= dict.fromkeys(_corpus(retrieval))
    beside = _sampled([text for text in others if text not in needed], max(retrieval.max_documents - len(needed), 0))
    documents = [*needed, *beside]
    places = {text: place for place, text in enumerate(documents)}
    return PairSearch(
        queries, documents, [[places[text] for text in found[query]] for query in queries], dict(left_out)
    )


def _sampled(texts: list[str], most: int) -> list[str]:
    """Returns at most `most` texts: the first texts in a fixed random order."""
    order = permute(np.arange(min(len(texts), most)), max(len(texts), 1), SEED, 0)
    return [texts[number] for number in order.tolist()[: len(texts)]]


def _rows(retrieval: RetrievalConfig) -> Iterator[tuple[str, list[str]] | Bad]:
    """Yields the query and the relevant texts of each row, or the reason why the row cannot be used."""
    with _errors_of("retrieval.pairs"):
        for file in expand_paths(retrieval.pairs):
            is_first = True
            for line, record in read_objects(file):
                if isinstance(record, Bad):
                    yield record
                    continue
                if is_first:
                    _check_fields(record, retrieval, f"{file}, line {line}")
                    is_first = False
                yield _pair(record.get(retrieval.query_field), record.get(retrieval.positive_field))


def _check_fields(record: Mapping[str, Any], retrieval: RetrievalConfig, place: str) -> None:
    for setting in ("query_field", "positive_field"):
        name = getattr(retrieval, setting)
        if name not in record:
            near = get_close_matches(name, record, 1, cutoff=0.5)
            names = ", ".join(map(repr, record)) or "none"
            raise DataError(
                f"{place} has no field {name!r}; it has {names}",
                f"set retrieval.{setting}" + (f"; did you mean {near[0]!r}?" if near else " to one of them"),
            )


def _pair(query: Any, positive: Any) -> tuple[str, list[str]] | Bad:
    positives = positive if isinstance(positive, list) else [positive]
    if not isinstance(query, str) or not query.strip():
        return Bad("without a query")
    texts = [text for text in positives if isinstance(text, str) and text.strip()]
    if not texts:
        return Bad("without a relevant text")
    others = [text for text in texts if text.strip() != query.strip()]
    return (query, others) if others else Bad("with the query itself as relevant text")


def _corpus(retrieval: RetrievalConfig) -> Iterator[str]:
    with _errors_of("retrieval.corpus"):
        for file in expand_paths(retrieval.corpus) if retrieval.corpus else ():
            for text in read_records(file, Reading(retrieval.corpus_field)):
                if not isinstance(text, Bad) and text.strip():
                    yield str(text)


@contextmanager
def _errors_of(field: str) -> Iterator[None]:
    """Adds the name of a configuration field to errors that the block raises about the field's files."""
    try:
        yield
    except DataError as error:
        fix = error.fix.replace("(text_field)", "(retrieval.corpus_field)").replace("corpus.paths", field)
        raise DataError(f"{field}: {error.what}", fix) from error


def ranking_measures(scores: np.ndarray, relevant: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Computes recall@10, the reciprocal rank and nDCG@10 of each query.

    With the ranks r of the R relevant documents of a query: recall@10 is the share of r <= 10; the reciprocal rank is
    1 / min r; nDCG@10 is the sum of 1 / log2(r + 1) over r <= 10, divided by the same sum for ranks 1 to min(R, 10).

    Args:
        scores: cosine of each query and document, [queries, documents].
        relevant: indices of each query's relevant documents.

    Returns:
        The measures, float64 [queries] each, keyed by their fields in `Retrieved`.
    """
    values = np.zeros((len(MEASURES), len(relevant)))
    gains = 1 / np.log2(np.arange(2, FIRST + 2))
    for number, places in enumerate(relevant):
        row, own = scores[number], np.sort(scores[number, places])[::-1]
        others = np.sort(np.delete(row, places))
        ranks = np.arange(1, len(own) + 1) + len(others) - np.searchsorted(others, own, side="left")
        top = ranks[ranks <= FIRST]
        values[:, number] = len(top) / len(own), 1 / ranks[0], gains[top - 1].sum() / gains[: len(own)].sum()
    return dict(zip(MEASURES, values, strict=True))


def mean_cosine(vectors: np.ndarray) -> float:
    """Returns the mean cosine similarity over all pairs of different vectors (Ethayarajh 2019, arXiv 1909.00512).

    With unit vectors u_1 to u_n, the mean cosine is (|sum_i u_i|^2 - n) / (n (n - 1)).
    """
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    units = vectors / np.maximum(lengths, 1e-12)
    count = len(units)
    return float((np.square(units.sum(0)).sum() - np.square(units).sum()) / max(count * (count - 1), 1))


def isoscore(vectors: np.ndarray) -> float | None:
    """Returns the IsoScore of vectors (Rudman et al. 2022, arXiv 2108.07344, algorithm 1): 0 to 1, 1 is isotropic.

    With the variances s_1 to s_n along the principal components, scaled so that |s| = sqrt(n), the defect is
    d = |s - 1| / sqrt(2 (n - sqrt(n))). The share of dimensions that vary equally is
    p = (n - d^2 (n - sqrt(n)))^2 / n^2, and the score is (n p - 1) / (n - 1).

    Args:
        vectors: [points, n], with at least 2 dimensions. Fewer points than dimensions lower the score. A single point
            has no variance, so its score is None.
    """
    if len(vectors) < 2:
        return None
    size = vectors.shape[1]
    variances = np.linalg.eigvalsh(np.cov(vectors.astype(np.float64), rowvar=False))
    norm = np.linalg.norm(variances)
    if not norm:
        return 0.0
    scaled = np.sqrt(size) * variances / norm
    defect = np.linalg.norm(scaled - 1) / np.sqrt(2 * (size - np.sqrt(size)))
    share = (size - defect**2 * (size - np.sqrt(size))) ** 2 / size**2
    return float((size * share - 1) / (size - 1))


@dataclass(frozen=True)
class VectorModel:
    """A model with the settings that determine its sentence vectors."""

    pretrained: Pretrained
    causal: bool
    pooling: str
    """Pooling of the states of tokens: `mean` or `cls`."""
    evaluation: EvaluationConfig
    """Evaluation settings. Only the maximum length of a text and the number of texts per pass are used."""


def measure_retrieval(config: Config, vectors: VectorModel, folder: Path) -> Retrieved:
    """Measures a model in a Ray task on the connected cluster, and writes the measures of each query to `folder`."""
    search = read_search(config.retrieval)
    measures, isotropy = call_on_device(_measure, config.resources, folder, config.retrieval, vectors, search)
    write_atomically(folder / QUERIES_FILE, json.dumps({name: of.tolist() for name, of in measures.items()}))
    means = {name: float(of.mean()) for name, of in measures.items()}
    figures: dict[str, Any] = {**means, **isotropy, "pooling": vectors.pooling, "left_out": search.left_out}
    return Retrieved(queries=len(search.queries), documents=len(search.documents), **figures)


def _measure(
    retrieval: RetrievalConfig, vectors: VectorModel, search: PairSearch
) -> tuple[dict[str, np.ndarray], dict[str, float | None]]:
    """Loads the model and measures it. Imports torch late, after Ray has hidden the GPUs of other tasks."""
    hide_unreserved_gpus()
    from adapt.evaluate.evaluation_task import ready

    return retrieved_by(ready(vectors.pretrained, vectors.causal), retrieval, vectors, search)


def retrieved_by(
    loaded: Any, retrieval: RetrievalConfig, vectors: VectorModel, search: PairSearch
) -> tuple[dict[str, np.ndarray], dict[str, float | None]]:
    """Ranks the documents. Returns the measures of each query, and the isotropy of the documents."""
    queries, documents = (
        embedded(loaded, vectors, [f"{prefix}{text}" for text in texts])
        for prefix, texts in (
            (retrieval.query_prefix or "", search.queries),
            (retrieval.document_prefix or "", search.documents),
        )
    )
    isotropy = {"mean_cosine": mean_cosine(documents), "isoscore": isoscore(documents)}
    units = [each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-12) for each in (queries, documents)]
    scores = units[0] @ units[1].T
    places = {text: place for place, text in enumerate(search.documents)}
    for number, query in enumerate(search.queries):
        if query in places:  # excludes the query's own text, which would always rank first
            scores[number, places[query]] = -np.inf
    return ranking_measures(scores, search.relevant), isotropy


def embedded(loaded: Any, vectors: VectorModel, texts: Sequence[str]) -> np.ndarray:
    """Computes the sentence vectors of texts, float32 [texts, H], as sentence-transformers does.

    Texts are truncated to `evaluation.sequence_length`. Vectors are not scaled to length 1.
    """
    from adapt.model.states import text_features

    evaluation = vectors.evaluation
    length, at_once = evaluation.sequence_length, evaluation.micro_batch
    ids = loaded.tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]
    tokens = [np.array(text, np.int64) for text in ids]
    return text_features(loaded.model, tokens, loaded.device, length, at_once, FEATURES[vectors.pooling])


def retrieval_change(before: Finished[Retrieved], after: Finished[Retrieved], samples: int) -> RetrievalChange:
    """Compares the retrieval of two models, with 95% bootstrap intervals over queries, paired by query."""
    old, new = (json.loads((each.path / QUERIES_FILE).read_text()) for each in (before, after))
    measures = {}
    for name in MEASURES:
        first, second = np.array(old[name]), np.array(new[name])
        columns = {"before": first, "after": second, "change": second - first}
        estimates = {part: with_interval(np.mean, (values,), samples) for part, values in columns.items()}
        measures[name] = MeasureChange(**estimates)
    return RetrievalChange(measures, before.result, after.result)
