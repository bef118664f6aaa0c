"""Whether a pool has enough documents is known before anything of it is embedded. No Ray is started."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from adapt.config import Config, SelectConfig
from adapt.corpus.screening import clean
from adapt.errors import DataError
from adapt.job.selection_job import select_documents
from adapt.runner import ensure
from adapt.stage.context import Context
from adapt.stage.selecting.select import Select
from tests.job.worlds import task_world
from tests.samples import sentences

POOL = sentences(30, seed=7)
UNREADABLE = r"3 of 4 records of the pool are unreadable: 3 malformed JSON \(first: .*pool.jsonl, record 1\)"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Ten neighbours of each text."""
    select = SelectConfig(kind="knn", pool_paths="data/pool.jsonl", per_example=10, embedder="transformer")
    return replace(task_world(tmp_path, monkeypatch), select=select)


def chosen(config: Config, *lines: str) -> Select:
    Path("data/pool.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return select_documents(Context.of(config), None)


def documents(*texts: str) -> list[str]:
    return [json.dumps({"text": text}) for text in texts]


def dev() -> str:
    return str(json.loads(Path("data/dev.jsonl").read_text().splitlines()[0])["text"])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], r"pool\.jsonl: there is no record at all"),
        (["broken"] * 3, r"pool\.jsonl has no readable record; of 3, the first is unreadable: malformed JSON"),
        ([*["broken"] * 3, *documents(POOL[0])], UNREADABLE),
        (documents("!", "?"), r"of 2 records all were left out \(2 too short\)"),
        (documents(*POOL[:9], "!"), "10 neighbours of each text are wanted, and the pool has 9 documents"),
        ([*documents(*POOL[:9]), "DEV"], "10 neighbours of each text are wanted, and the pool has 9 documents"),
        (["DEV"] * 12, r"of 12 records all were left out \(12 in evaluation set dev-and-test\)"),
    ],
)
def test_a_pool_with_too_few_documents_is_refused_before_it_is_embedded(
    config: Config, lines: list[str], message: str
) -> None:
    selection = chosen(config, *(json.dumps({"text": dev()}) if line == "DEV" else line for line in lines))
    with pytest.raises(DataError, match=message) as caught:
        ensure(selection, Context.of(config).store)
    assert caught.value.fix
    kinds = {folder.name for folder in Path(config.storage.root).iterdir()}
    assert kinds.isdisjoint({"embedder", "embed", "index", "select"})


def test_no_more_is_read_than_tells(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "BATCH_RECORDS", 5)
    vectors = chosen(config, *documents(*POOL[:12]), *["broken"] * 100).vectors
    assert vectors
    assert vectors.enough
    assert ensure(vectors.enough, Context.of(config).store).result.documents == 10


def test_other_budgets_and_selections_say_nothing_of_neighbours(config: Config) -> None:
    by_size = chosen(replace(config, select=replace(config.select, per_example=None, documents=5)), *documents(*POOL))
    assert by_size.vectors
    assert by_size.vectors.enough is None
    without_vectors = replace(config.select, kind="dsir", embedder="tfidf")
    assert chosen(replace(config, select=without_vectors), *documents(*POOL)).vectors is None
