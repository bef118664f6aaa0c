"""Tests scoring with the real MTEB on a tiny encoder, offline, with tasks from files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from adapt.config import MtebConfig, OwnMtebTask
from adapt.evaluate.benchmark import mteb_tasks
from adapt.evaluate.benchmark.item_scores import file_name, read_items
from adapt.evaluate.benchmark.mteb_tasks import MtebRun, score_mteb
from adapt.model.locate import Pretrained
from adapt.model.sentence_vectors import SentenceVectors
from adapt.runner.digest import Digests
from adapt.support.errors import ConfigError, DataError
from tests.samples import labelled, sentences, write

pytest.importorskip("mteb", reason="needs pip install 'dontstop[mteb]'")

from adapt.evaluate.benchmark.mteb_run import vector_folder


@pytest.fixture
def own(tmp_path: Path) -> list[OwnMtebTask]:
    """Returns a task of each kind with its files."""
    texts = sentences(36, seed=3)
    pairs = [{"text": texts[n], "pair": texts[n + 12], "label": n % 5} for n in range(12)]
    queries = [{"text": f"query {text}", "pair": text} for text in texts[:10]]
    more = [{"text": text} for text in texts[10:]]
    return [
        OwnMtebTask(
            "topics",
            "classification",
            test=write(tmp_path / "test.jsonl", labelled(20, 1)),
            train=write(tmp_path / "train.jsonl", labelled(40, 2)),
        ),
        OwnMtebTask("pairs", "sts", test=write(tmp_path / "pairs.jsonl", pairs)),
        OwnMtebTask(
            "search",
            "retrieval",
            test=write(tmp_path / "queries.jsonl", queries),
            corpus=write(tmp_path / "more.jsonl", more),
        ),
    ]


def run_of(model: Path, own: list[OwnMtebTask]) -> MtebRun:
    tasks = mteb_tasks.mteb_tasks(MtebConfig(own=own), Digests())
    return MtebRun(Pretrained(model, model), SentenceVectors("mean", max_length=64), tasks)


def test_own_tasks_are_scored_by_item(tiny_bert: Path, own: list[OwnMtebTask], tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    out = tmp_path / "out"
    out.mkdir()
    run = run_of(tiny_bert, own)
    score_mteb(run, str(out))
    found = read_items(out)
    assert {name: (task.items, task.main, task.library) for name, task in found.items()} == {
        "topics": (20, "accuracy", "mteb"),
        "pairs": (12, "cosine_spearman", "mteb"),
        "search": (10, "ndcg_at_10", "mteb"),
    }
    # the statistic that the code computes from the scores of the items equals MTEB's main score
    assert [task.measures[task.main].statistic for task in found.values()] == ["spearman", "mean", "mean"]
    vector_folder(run, tmp_path / "model")
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    texts = sentences(36, seed=3)
    first, second = (model.encode(some, normalize_embeddings=True) for some in (texts[:12], texts[12:24]))
    expected = spearmanr([n % 5 for n in range(12)], (first * second).sum(1)).statistic
    assert found["pairs"].measures["cosine_spearman"].score == pytest.approx(expected, abs=1e-3)
    queries = model.encode([f"query {text}" for text in texts[:10]], normalize_embeddings=True)
    order = np.argsort(-(queries @ model.encode(texts, normalize_embeddings=True).T), axis=1)
    ranks = np.array([row.tolist().index(n) for n, row in enumerate(order)])
    gains = np.where(ranks < 10, 1 / np.log2(ranks + 2), 0)
    values = dict(
        zip(map(str, found["search"].texts or []), found["search"].measures["ndcg_at_10"].columns[0], strict=True)
    )
    expected_gains = {str([f"query {text}"]): gain for text, gain in zip(texts, gains.tolist(), strict=False)}
    assert values == pytest.approx(expected_gains, abs=1e-3)
    assert (found["pairs"].texts or [])[2] == [texts[2], texts[14]]
    assert min(task.tokens for task in found.values()) > 0

    (out / file_name("pairs")).unlink()  # deletes one result, as if the process had been killed
    score_mteb(run, str(out))
    assert read_items(out)["pairs"].measures == found["pairs"].measures


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "a", "pair": "b"}, "line 1 has no field 'label'; it has 'text', 'pair'"),
        ({"text": "a", "pair": " ", "label": 1}, "line 1 has no text in 'pair'"),
        ({"text": "a", "pair": "b", "label": "high"}, "line 1 has the score 'high', which is not a finite number"),
        ({"text": "a", "pair": "b", "label": "nan"}, "line 1 has the score 'nan', which is not a finite number"),
    ],
)
def test_rows_that_cannot_be_used_are_named_before_anything_runs(
    tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    task = OwnMtebTask("pairs", "sts", test=write(tmp_path / "pairs.jsonl", [row]))
    with pytest.raises(DataError, match=said):
        mteb_tasks.mteb_tasks(MtebConfig(own=[task]), Digests())


@pytest.mark.parametrize("label", [None, " ", ["a"]])
def test_labels_that_are_no_class_are_refused(tmp_path: Path, label: Any) -> None:
    """Without this check, a missing label would be the class "None"."""
    file = write(tmp_path / "texts.jsonl", [{"text": "a", "label": label}])
    task = OwnMtebTask("topics", "classification", test=file, train=file)
    with pytest.raises(DataError, match=r"line 1 has the label .*, which is no class"):
        mteb_tasks.mteb_tasks(MtebConfig(own=[task]), Digests())


def test_errors_in_a_retrieval_task_name_the_fields_of_the_task(tmp_path: Path) -> None:
    task = OwnMtebTask("search", "retrieval", test=write(tmp_path / "queries.jsonl", [{"question": "a", "pair": "b"}]))
    with pytest.raises(DataError, match=r"^mteb.own: search: test: .* no field 'text'") as raised:
        mteb_tasks.mteb_tasks(MtebConfig(own=[task]), Digests())
    assert "set text_field" in raised.value.fix
    assert "retrieval." not in str(raised.value)


def test_names_that_cannot_be_measured_are_refused(
    own: list[OwnMtebTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for config, said in (
        (MtebConfig(tasks=["banking77classification"]), "did you mean Banking77Classification"),
        (MtebConfig(tasks=["Banking77Classification"]), "HF_HUB_OFFLINE is set"),
        (MtebConfig(tasks=["Banking77Classification"], languages=["deu"]), "none of the languages deu"),
        (MtebConfig(own=[own[1], own[1]]), "contain two tasks named pairs"),
        (MtebConfig(own=[OwnMtebTask("x", "sts")]), "has no `test`"),
        (MtebConfig(own=[OwnMtebTask("x", "classification", test=own[0].test)]), "has no `train`"),
    ):
        with pytest.raises(ConfigError, match=said):
            mteb_tasks.mteb_tasks(config, Digests())
    monkeypatch.setattr(mteb_tasks, "missing_packages", lambda packages: "mteb")
    with pytest.raises(ConfigError, match=r"pip install 'dontstop\[mteb\]'"):
        mteb_tasks.mteb_tasks(MtebConfig(own=own), Digests())


def test_the_key_depends_on_content_and_fields(own: list[OwnMtebTask], tmp_path: Path) -> None:
    def key(tasks: list[OwnMtebTask]) -> dict[str, Any]:
        return mteb_tasks.mteb_tasks(MtebConfig(own=tasks), Digests()).what()

    first = key(own)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(Path(str(own[1].test)).read_bytes())
    moved = OwnMtebTask("pairs", "sts", test=str(copy))
    assert key([own[0], moved, own[2]]) == first
    copy.write_text(copy.read_text() * 2)
    assert key([own[0], moved, own[2]]) != first
    assert key([OwnMtebTask("pairs", "sts", test=own[1].test, pair_field="text")]) != key([own[1]])
