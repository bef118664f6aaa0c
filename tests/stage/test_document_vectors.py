"""Tests of the stages that learn an embedder, embed the documents of a pool, and index their vectors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapt.config import Config, ModelConfig, ResourcesConfig, SelectConfig, StorageConfig
from adapt.corpus import screening
from adapt.embed import cluster_embedding
from adapt.embed.cluster_embedding import embed_texts
from adapt.embed.embedder import embedder_of
from adapt.embed.text_chunks import LinesSource
from adapt.embed.vector_files import read_vectors, stored_vectors, vector_files, write_vectors
from adapt.index.vector_index import VectorIndex
from adapt.job.selection_job import select_documents
from adapt.runner import Done, Outcome, Stage, ensure
from adapt.select import TEXTS_FILE
from adapt.stage.context import Context
from adapt.stage.document_vectors import BuildIndex, Embed, Embedding, LearnEmbedder, PoolTexts, StageTexts
from adapt.stage.select_documents import Select
from adapt.stage.text_sources import listed_files
from adapt.support.errors import DataError
from tests.embed.toys import topical
from tests.job.worlds import task_world
from tests.samples import sentences, write

POOL, TOPICS = topical(120)
RESOURCES = ResourcesConfig()
OWN = "tests.embed.toys:Lengths"


@dataclass(frozen=True)
class Wrote:
    texts: int


@dataclass(frozen=True, eq=False)
class SomeTexts(Stage[Wrote]):
    """A stage that writes texts with ids above 2^24, where float32 cannot represent all integers."""

    kind = "texts"
    name: str
    texts: tuple[str, ...]

    def what(self) -> Mapping[str, Any]:
        return {"texts": list(self.texts)}

    def run(self, folder: Path, done: Done) -> Outcome[Wrote]:
        lines = [{"id": 2**24 + 1 + number, "text": text} for number, text in enumerate(self.texts)]
        write(folder / TEXTS_FILE, lines)
        return Outcome(Wrote(len(lines)))


def context(folder: Path, model: Path) -> Context:
    for part in range(3):
        write(folder / f"pool-{part}.jsonl", [{"text": text} for text in POOL[part::3]])
    config = Config(
        model=ModelConfig(path=str(model)),
        training=replace(Config().training, sequence_length=64),
        evaluation=replace(Config().evaluation, sequence_length=64),
        storage=StorageConfig(root=str(folder / "runs")),
    )
    return Context.of(config)


def pool(made: Context, folder: Path) -> PoolTexts:
    corpus = replace(made.config.corpus, paths=str(folder / "pool-*.jsonl"), heldout_fraction=0.0)
    return PoolTexts(listed_files(made, corpus, "pool"))


def test_learning_embedding_and_indexing_find_texts_of_the_topic(
    tmp_path: Path, tiny_bert: Path, ray_cluster: None
) -> None:
    made = context(tmp_path, tiny_bert)
    queries = StageTexts(SomeTexts("task", tuple(topical(20, seed=5)[0])))
    embedding = Embedding.of(made, "tfidf", {"dimension": 4})
    learnt = LearnEmbedder("tfidf", embedding, (pool(made, tmp_path), queries), RESOURCES)
    stored, asked = (
        Embed(name, embedding, learnt, texts, RESOURCES)
        for name, texts in (("pool", pool(made, tmp_path)), ("task", queries))
    )
    index = BuildIndex("pool", stored, "auto", 8, 20, RESOURCES)
    found = ensure(index, made.store).result
    assert (found.vectors, found.index, found.space) == (120, "flat", stored.space)
    assert ensure(learnt, made.store).result.figures["texts"] == 140
    task = ensure(asked, made.store)
    ((ids, vectors),) = stored_vectors(task.path)
    assert ids.tolist() == list(range(2**24 + 1, 2**24 + 21))
    assert task.result.space == found.space
    opened = VectorIndex.open(ensure(index, made.store).path, task.result.space)
    _, near = opened.search(vectors, 5)
    items, places = near // 2**32, near % 2**32
    assert (TOPICS[items + 3 * places] == topical(20, seed=5)[1][:, None]).mean() > 0.9


def test_an_interrupted_run_resumes_with_the_same_result(tmp_path: Path, ray_cluster: None) -> None:
    for name in ("texts", "one", "two"):
        (tmp_path / name).mkdir()
    lines = [{"id": number, "text": f"{number} " + "x" * 300_000} for number in range(9)]
    write(tmp_path / "texts" / TEXTS_FILE, lines)
    source, embedder = LinesSource(tmp_path / "texts" / TEXTS_FILE), embedder_of(OWN, {}, 0)
    first = embed_texts(source, embedder, None, tmp_path / "one", RESOURCES, "float32")
    files = vector_files(tmp_path / "one")
    assert (first.documents, first.dimension, len(files)) == (9, 2, 3)
    ids, vectors = read_vectors(files[1])
    counts = {"documents": len(ids), "dimension": 2, "seen": len(ids), "unknown": 0}
    # the vectors are negated, so that the test notices whether the interrupted run's vectors are reused
    write_vectors(tmp_path / "two" / files[1].name, ids, -vectors, counts)
    (tmp_path / "two" / f".{files[0].name}.aside").write_text("half")
    assert embed_texts(source, embedder, None, tmp_path / "two", RESOURCES, "float32") == first
    np.testing.assert_array_equal(read_vectors(tmp_path / "two" / files[1].name)[1], -vectors)
    np.testing.assert_array_equal(read_vectors(tmp_path / "two" / files[0].name)[1], read_vectors(files[0])[1])
    assert sorted(file.name for file in (tmp_path / "two").iterdir()) == [file.name for file in files]


@pytest.mark.parametrize(
    ("texts", "message"), [([], "there is no text to embed"), (["a?", "b?", "c"], "67% of the text is unknown")]
)
def test_texts_that_cannot_be_compared_are_refused(
    tmp_path: Path, ray_cluster: None, texts: list[str], message: str
) -> None:
    write(tmp_path / TEXTS_FILE, [{"id": number, "text": text} for number, text in enumerate(texts)])
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match=message):
        embed_texts(LinesSource(tmp_path / TEXTS_FILE), embedder_of(OWN, {}, 0), None, tmp_path / "out", RESOURCES)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["broken"] * 3, "has no readable record; the first of 3 is unreadable: malformed JSON"),
        (
            ["broken"] * 2 + POOL[:8],
            r"2 of 10 records of the pool are unreadable: 2 malformed JSON \(first: .*, record 1\)",
        ),
        (["broken", *POOL[:9]], "1 of 10 records of the pool are unreadable"),
        (["!", "?"], r"all 2 records were left out \(2 too short\)"),
    ],
)
def test_a_pool_that_cannot_be_read_is_refused_with_its_counts(
    tmp_path: Path, tiny_bert: Path, ray_cluster: None, lines: list[str], message: str
) -> None:
    made = context(tmp_path, tiny_bert)
    content = [line if line == "broken" else json.dumps({"text": line}) for line in lines]
    (tmp_path / "pool-0.jsonl").write_text("".join(f"{line}\n" for line in content))
    for part in (1, 2):
        (tmp_path / f"pool-{part}.jsonl").unlink()
    texts, embedding = pool(made, tmp_path), Embedding.of(made, "tfidf", {"dimension": 4})
    learnt = LearnEmbedder("tfidf", embedding, (texts,), RESOURCES)
    with pytest.raises(DataError, match=message):
        ensure(learnt, made.store)
    transformer = Embedding.of(made, "transformer", {})
    with pytest.raises(DataError, match=message):
        ensure(Embed("pool", transformer, None, texts, RESOURCES), made.store)


def test_a_large_source_is_sampled_before_it_is_embedded(
    tmp_path: Path, ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_embedding, "LARGE_BYTES", 1)
    (tmp_path / "out").mkdir()
    for text in ("a?", "a"):
        write(tmp_path / TEXTS_FILE, [{"id": number, "text": text} for number in range(40)])
        source, embedder = LinesSource(tmp_path / TEXTS_FILE), embedder_of(OWN, {}, 0)
        if text == "a":
            assert embed_texts(source, embedder, None, tmp_path / "out", RESOURCES).documents == 40
            return
        with pytest.raises(DataError, match="100% of the text is unknown"):
            embed_texts(source, embedder, None, tmp_path / "out", RESOURCES)
        assert not list((tmp_path / "out").iterdir())


def test_keys_and_spaces_depend_on_what_determines_the_vectors(tmp_path: Path, tiny_bert: Path) -> None:
    made = context(tmp_path, tiny_bert)
    texts = StageTexts(SomeTexts("task", ("a", "b")))

    def embed(kind: str, texts: StageTexts | PoolTexts = texts, **options: Any) -> Embed:
        return Embed("name", Embedding.of(made, kind, options), None, texts, RESOURCES)

    plain = embed("transformer")
    assert plain.key == embed("transformer", texts_at_once=3, path=str(tiny_bert)).key
    other = embed("transformer", pool(made, tmp_path))
    assert (plain.space, plain.key != other.key) == (other.space, True)
    layered = embed("transformer", layer=1)
    assert layered.key != plain.key
    assert layered.space != plain.space
    assert embed("static").space != plain.space
    learners = [
        LearnEmbedder("name", Embedding.of(made, "tfidf", {}), (StageTexts(SomeTexts("task", each)),), RESOURCES)
        for each in (("a",), ("b",))
    ]
    spaces = {Embed("name", each.embedding, each, texts, RESOURCES).space for each in learners}
    assert len(spaces) == 2


SENTENCES = sentences(30, seed=7)
UNREADABLE = r"3 of 4 records of the pool are unreadable: 3 malformed JSON \(first: .*pool.jsonl, record 1\)"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Returns the configuration of a selection by ten nearest neighbours per target text."""
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
        ([], r"pool\.jsonl: there are no records"),
        (["broken"] * 3, r"pool\.jsonl has no readable record; the first of 3 is unreadable: malformed JSON"),
        ([*["broken"] * 3, *documents(SENTENCES[0])], UNREADABLE),
        (documents("!", "?"), r"all 2 records were left out \(2 too short\)"),
        (documents(*SENTENCES[:9], "!"), "10 neighbours of each text are needed, but the pool has only 9 documents"),
        (
            [*documents(*SENTENCES[:9]), "DEV"],
            "10 neighbours of each text are needed, but the pool has only 9 documents",
        ),
        (["DEV"] * 12, r"all 12 records were left out \(12 in evaluation set dev-and-test\)"),
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


def test_reading_stops_at_the_required_number(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "BATCH_RECORDS", 5)
    vectors = chosen(config, *documents(*SENTENCES[:12]), *["broken"] * 100).vectors
    assert vectors
    assert vectors.enough
    assert ensure(vectors.enough, Context.of(config).store).result.documents == 10


def test_other_budgets_and_selections_skip_the_check(config: Config) -> None:
    by_size = chosen(
        replace(config, select=replace(config.select, per_example=None, documents=5)), *documents(*SENTENCES)
    )
    assert by_size.vectors
    assert by_size.vectors.enough is None
    without_vectors = replace(config.select, kind="dsir", embedder="tfidf")
    assert chosen(replace(config, select=without_vectors), *documents(*SENTENCES)).vectors is None
