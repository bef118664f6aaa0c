"""Tests of stages that select documents by vectors: texts are embedded once, and ids identify the right documents."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, ModelConfig, SelectConfig, StorageConfig, TaskConfig
from adapt.job.selection_job import select_documents
from adapt.runner import ensure
from adapt.stage.context import Context
from adapt.stage.select_documents import Select
from adapt.stage.text_sources import lines_of
from adapt.support.errors import DataError
from tests.embed.toys import topical
from tests.samples import with_labels, write

POOL, TOPICS = topical(90, length=14)
TRAIN = [text for text, topic in zip(*topical(40, seed=5, length=14), strict=True) if topic][:12]
TEST = [text for text, topic in zip(*topical(20, seed=6, length=14), strict=True) if topic][:4]


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    """Returns the configuration of a task and a pool.

    The pool has texts of two topics in three files. Test text, empty texts and unreadable records are among them.
    """
    for number in range(3):
        records: list[Any] = [{"text": text} for text in POOL[number::3]]
        records[1:1] = [{"text": ""}, {"text": TEST[number]}, {"other": "field"}]
        write(tmp_path / f"pool-{number}.jsonl", records)
    splits: dict[str, Any] = {
        split: write(tmp_path / f"{split}.jsonl", with_labels(texts))
        for split, texts in (("train", TRAIN), ("dev", TEST[3:]), ("test", TEST[:3]))
    }
    return Config(
        model=ModelConfig(path=str(tiny_bert)),
        task=TaskConfig(**splits),
        select=SelectConfig(
            kind="knn",
            pool_paths=str(tmp_path / "pool-*.jsonl"),
            documents=20,
        ),
        select_options={"tfidf": {"dimension": 8}},
        corpus=replace(Config().corpus, max_bad_fraction=0.1),
        training=replace(Config().training, sequence_length=64),
        evaluation=replace(Config().evaluation, sequence_length=64),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def choosing(config: Config, **changes: Any) -> Config:
    return replace(config, select=replace(config.select, **changes))


def built(config: Config) -> Select:
    return select_documents(Context.of(config), None)


def test_neighbours_are_the_documents_whose_vectors_are_near(config: Config, ray_cluster: None) -> None:
    done = ensure(built(config), Context.of(config).store)
    lines = lines_of(done.path)
    assert len(lines) == 20
    topics = [TOPICS[POOL.index(line["text"])] for line in lines]  # `index` fails if test text was selected
    assert sum(topics) >= 19
    assert done.result.figures[0]["recall"] == 1
    assert done.result.dropped["in evaluation set dev-and-test"] == 3
    each = ensure(built(choosing(config, documents=None, per_example=2)), Context.of(config).store)
    assert 2 <= each.result.documents <= 2 * len(TRAIN)
    assert each.result.figures[0]["neighbours"] == 2
    with pytest.raises(DataError, match="91 neighbours of each text are needed, but the pool has only 90 documents"):
        ensure(built(choosing(config, documents=None, per_example=91)), Context.of(config).store)


def test_selections_by_vectors_follow_each_other(config: Config, tmp_path: Path, ray_cluster: None) -> None:
    """The first selection removes near copies, the second keeps nearest neighbours, and the third samples from them."""
    copies = [{"text": f"{text} {text} people"} for text in POOL[::3]]
    write(tmp_path / "pool-3.jsonl", copies)
    kind = [{"semdedup": {"eps": 0.03, "clusters": 1}}, "knn", {"tsds": {"alpha": 0.9}}]
    done = ensure(built(choosing(config, kind=kind, documents=8, keep=3)), Context.of(config).store)
    first, second = done.result.passed
    assert 60 < first <= 95 < done.result.pool == 120
    assert second == 24
    assert [sorted(each)[0] for each in done.result.figures] == ["clusters", "neighbours", "density"]
    lines = lines_of(done.path)
    assert len(lines) == 8
    topics = dict(zip([*POOL, *(each["text"] for each in copies)], [*TOPICS, *TOPICS[::3]], strict=True))
    assert sum(topics[line["text"]] for line in lines) >= 7


def test_vectors_are_shared_if_what_determines_them_is_equal(config: Config) -> None:
    one, more, other = (built(choosing(config, **each)) for each in ({}, {"documents": 7}, {"embedder": "static"}))
    assert one.key != more.key
    assert one.vectors
    assert more.vectors
    assert other.vectors
    assert (one.vectors.pool, one.vectors.target) == (more.vectors.pool, more.vectors.target)
    assert one.vectors.pool.key != other.vectors.pool.key
    assert built(choosing(config, min_recall=0.5)).key != one.key
    assert built(choosing(config, kind="random")).vectors is None
