"""Tests retrieval: reading pairs of texts, and measures of ranking and isotropy against independent computations."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import ndcg_score
from transformers import BertModel

from adapt.config import EvaluationConfig, RetrievalConfig
from adapt.evaluate.evaluation_task import Ready
from adapt.evaluate.measurements import RetrievalChange, Retrieved
from adapt.evaluate.retrieval import (
    QUERIES_FILE,
    PairSearch,
    VectorModel,
    check_pairs,
    isoscore,
    mean_cosine,
    ranking_measures,
    read_search,
    retrieval_change,
    retrieved_by,
)
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import DataError
from tests.samples import sentences, write

RNG = np.random.default_rng(0)


def test_measures_against_a_plain_computation() -> None:
    scores = RNG.normal(size=(40, 60))
    relevant = [sorted(RNG.choice(60, int(RNG.integers(1, 15)), replace=False).tolist()) for _ in range(40)]
    found = ranking_measures(scores, relevant)
    for number, places in enumerate(relevant):
        order = np.argsort(-scores[number]).tolist()
        ranks = [order.index(place) + 1 for place in places]
        assert found["recall_at_10"][number] == pytest.approx(sum(rank <= 10 for rank in ranks) / len(places))
        assert found["mrr"][number] == pytest.approx(1 / min(ranks))
        truth = np.isin(np.arange(60), places).astype(float)
        assert found["ndcg_at_10"][number] == pytest.approx(ndcg_score([truth], scores[[number]], k=10))


def test_equal_scores_give_no_credit() -> None:
    """If all vectors of a model are equal, relevant documents are ranked last."""
    found = ranking_measures(np.ones((1, 50)), [[0, 1]])
    assert {name: float(of[0]) for name, of in found.items()} == {"recall_at_10": 0, "mrr": 1 / 49, "ndcg_at_10": 0}


def test_the_mean_cosine_is_that_of_all_pairs() -> None:
    vectors = RNG.normal(1, 1, (12, 5)).astype(np.float32)
    pairs = [
        float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        for i, a in enumerate(vectors)
        for j, b in enumerate(vectors)
        if i != j
    ]
    assert mean_cosine(vectors) == pytest.approx(np.mean(pairs))
    assert mean_cosine(np.ones((4, 3))) == pytest.approx(1)


def test_isoscore_follows_its_algorithm() -> None:
    """Repeats the paper's algorithm 1 for IsoScore: principal components, variances, scaling, defect, share, score."""
    vectors = RNG.normal(size=(200, 6)) @ RNG.normal(size=(6, 6))
    variances = PCA(6).fit_transform(vectors).var(0, ddof=1)
    scaled = math.sqrt(6) * variances / math.sqrt((variances**2).sum())
    defect = math.sqrt(((scaled - 1) ** 2).sum()) / math.sqrt(2 * (6 - math.sqrt(6)))
    share = (6 - defect**2 * (6 - math.sqrt(6))) ** 2 / 36
    assert isoscore(vectors) == pytest.approx((6 * share - 1) / 5)
    assert isoscore(RNG.normal(size=(50_000, 4))) == pytest.approx(1, abs=0.01)
    assert isoscore(np.outer(RNG.normal(size=50), [1, 2, 3])) == pytest.approx(0, abs=1e-9)


def test_vectors_are_ranked_by_cosine(tiny_bert: Path) -> None:
    texts = sentences(12, shortest=4, longest=30)
    search = PairSearch(texts[:4], [*texts[4:], texts[0]], [[0], [1, 2], [5], [3]], {})
    model, tokenizer = load_model(tiny_bert), load_tokenizer(tiny_bert)
    ready = Ready(model, tokenizer, torch.device("cpu"))
    settings = VectorModel(Pretrained(tiny_bert, tiny_bert), False, "cls", EvaluationConfig(sequence_length=16))
    retrieval = RetrievalConfig(query_prefix="the ", document_prefix="a ")
    found, isotropy = retrieved_by(ready, retrieval, settings, search)

    plain = BertModel.from_pretrained(tiny_bert).eval()

    def vector(text: str) -> torch.Tensor:
        ids = tokenizer(text, truncation=True, max_length=16, return_tensors="pt")
        return plain(**ids).last_hidden_state[0, 0]

    with torch.inference_mode():
        queries = torch.stack([vector(f"the {text}") for text in search.queries])
        documents = torch.stack([vector(f"a {text}") for text in search.documents])
    scores = torch.nn.functional.cosine_similarity(queries[:, None], documents[None], dim=-1).numpy()
    scores[0, -1] = -np.inf  # the last document has the text of the first query, so it is left out of this ranking
    expected = ranking_measures(scores, search.relevant)
    assert {name: of.tolist() for name, of in found.items()} == {name: of.tolist() for name, of in expected.items()}
    assert isotropy["mean_cosine"] == pytest.approx(mean_cosine(documents.numpy()), abs=1e-5)


PAIRS: list[dict[str, Any]] = [
    {"query": "q1", "positive": "d1"},
    {"query": "q1", "positive": ["d2", "d1", ""]},
    {"query": " ", "positive": "d3"},
    {"query": "q2", "positive": None},
    {"query": "q3", "positive": "q3 "},
    {"query": "q4", "positive": "d4"},
]


def pairs(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> RetrievalConfig:
    return RetrievalConfig(pairs=write(folder / "pairs.jsonl", rows), **settings)


def test_rows_are_read_and_bad_ones_counted(tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("query,positive\nq5,d5\n")
    corpus = write(tmp_path / "corpus.jsonl", [{"body": "d1"}, {"body": "x"}, {"body": ""}])
    retrieval = pairs(tmp_path, PAIRS, corpus=corpus, corpus_field="body")
    search = read_search(
        RetrievalConfig(**{**vars(retrieval), "pairs": [str(retrieval.pairs), str(tmp_path / "more.csv")]})
    )
    found = {
        query: {search.documents[place] for place in places}
        for query, places in zip(search.queries, search.relevant, strict=True)
    }
    assert found == {"q1": {"d1", "d2"}, "q4": {"d4"}, "q5": {"d5"}}
    assert sorted(search.documents) == ["d1", "d2", "d4", "d5", "x"]
    assert search.left_out == {
        "repeated": 1,
        "without a query": 1,
        "without a relevant text": 1,
        "with the query itself as relevant text": 1,
    }


def test_samples_are_fixed_and_contain_the_relevant_texts(tmp_path: Path) -> None:
    rows = [{"query": f"q{n}", "positive": f"d{n}"} for n in range(50)]
    retrieval = pairs(tmp_path, rows, max_queries=5, max_documents=20)
    search = read_search(retrieval)
    assert (len(search.queries), len(search.documents), len(set(search.documents))) == (5, 20, 20)
    assert [search.documents[place] for (place,) in search.relevant] == [f"d{query[1:]}" for query in search.queries]
    assert read_search(retrieval) == search


def test_missing_columns_and_files_without_pairs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 1 has no field 'positive'; it has 'query', 'positives'") as caught:
        check_pairs(pairs(tmp_path, [{"query": "q", "positives": "d"}]))
    assert caught.value.fix == "set retrieval.positive_field; did you mean 'positives'?"
    with pytest.raises(DataError, match="contains no usable pair"):
        check_pairs(pairs(tmp_path, [{"query": "", "positive": "d"}]))
    with pytest.raises(DataError, match=r"contains no usable pair \(1 rows: without a query\)"):
        read_search(pairs(tmp_path, [{"query": "", "positive": "d"}]))
    with pytest.raises(DataError, match=r"retrieval\.pairs: .*gone\.jsonl matches no file"):
        check_pairs(RetrievalConfig(pairs=str(tmp_path / "gone.jsonl")))
    with pytest.raises(DataError, match=r"retrieval\.corpus: .* has no readable record") as caught:
        check_pairs(pairs(tmp_path, PAIRS, corpus=write(tmp_path / "corpus.jsonl", [{"body": "d1"}])))
    assert "(retrieval.corpus_field); or leave it out of retrieval.corpus" in caught.value.fix
    check_pairs(pairs(tmp_path, PAIRS))


@dataclass(frozen=True)
class Measured:
    path: Path
    result: Retrieved


def finished(folder: Path, values: np.ndarray) -> Any:
    folder.mkdir()
    names = ("recall_at_10", "mrr", "ndcg_at_10")
    (folder / QUERIES_FILE).write_text(json.dumps({name: values.tolist() for name in names}))
    return Measured(folder, Retrieved(*[float(values.mean())] * 3, 0.5, 0.1, len(values), 99, "mean", {"repeated": 2}))


def test_changes_are_paired_by_query(tmp_path: Path) -> None:
    """Scores differ a lot between queries, but each rises a little, so the interval of the change excludes 0."""
    before = RNG.uniform(0, 0.9, 200)
    after = before + RNG.uniform(0, 0.05, 200)
    change = retrieval_change(finished(tmp_path / "a", before), finished(tmp_path / "b", after), 500)
    of = change.measures["ndcg_at_10"]
    assert of.change.value == pytest.approx(after.mean() - before.mean())
    draws = np.random.default_rng(1).integers(0, 200, (5000, 200))
    low, high = np.quantile((after - before)[draws].mean(1), [0.025, 0.975])
    assert (of.change.low, of.change.high) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))
    assert change.sentence().startswith(f"Retrieval (nDCG@10) rose from {before.mean():.3f} to {after.mean():.3f}")
    assert [row[0] for row in change.table().rows][-2:] == ["mean cosine of two documents", "IsoScore"]
    assert "200 queries, 99 documents, mean pooling" in change.note()
    assert change.note().endswith("Rows left out: 2 repeated.")


def test_few_queries_and_no_change_are_said(tmp_path: Path) -> None:
    same = RNG.uniform(size=50)
    change = retrieval_change(finished(tmp_path / "a", same), finished(tmp_path / "b", same), 100)
    assert "did not change measurably" in change.sentence()
    few = retrieval_change(finished(tmp_path / "c", same[:3]), finished(tmp_path / "d", same[:3]), 100)
    assert isinstance(few, RetrievalChange)
    assert few.sentence().endswith("There are too few queries for a 95% interval of the change.")


def test_a_single_document_has_no_isoscore() -> None:
    assert isoscore(RNG.normal(size=(1, 6))) is None
    of = Retrieved(0.5, 0.5, 0.5, mean_cosine=0.0, isoscore=None, queries=1, documents=1, pooling="mean")
    assert RetrievalChange({}, of, of).table().rows == [["mean cosine of two documents", "0.000", "0.000", "+0.000"]]
