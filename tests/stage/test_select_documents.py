"""Tests of selecting documents from a pool: number of documents, excluded texts, and scores. Needs no Ray."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, EvaluationSet, ModelConfig, SelectConfig, StorageConfig, TaskConfig
from adapt.corpus.screening import place_of
from adapt.job.selection_job import random_control, select_documents
from adapt.model.tokenizer import load_tokenizer
from adapt.runner import Done, Finished, Outcome, Stage, ensure
from adapt.select.selection import Selection
from adapt.stage.context import Context
from adapt.stage.prepare_text import Prepare, Prepared
from adapt.stage.select_documents import Select, Selected
from adapt.stage.text_sources import lines_of, listed_files
from adapt.support.errors import DataError
from tests.corpus.test_heldout import shards
from tests.samples import sentences, with_labels, write

TRAIN = [f"the text of number {number}" for number in range(5)]
DEV = ["the dev text", "another dev text"]
TEST = ["the test text", "a sentence of the test split that nobody may see before the end of it all"]
POOL = [f"document number {number} of the pool" + " which is longer" * (number % 7) for number in range(40)]


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    """Returns a configuration whose pool has one document that quotes the test split."""
    splits: dict[str, Any] = {
        split: write(tmp_path / f"{split}.jsonl", with_labels(texts))
        for split, texts in (("train", TRAIN), ("dev", DEV), ("test", TEST))
    }
    pool = write(tmp_path / "pool.jsonl", [{"text": text} for text in (*POOL, f"we quote: {TEST[1]}")])
    return Config(
        model=ModelConfig(path=str(tiny_bert)),
        task=TaskConfig(**splits),
        select=SelectConfig(pool_paths=pool, per_example=3),
        training=replace(Config().training, sequence_length=64),
        evaluation=replace(Config().evaluation, sequence_length=64),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def built(config: Config, *measured: Stage[Prepared], transductive: bool = False) -> Select:
    config = replace(config, tapt=replace(config.tapt, transductive=transductive))
    return replace(select_documents(Context.of(config), None), measured=measured)


def select(
    config: Config, *measured: Stage[Prepared], transductive: bool = False
) -> tuple[list[str], Finished[Selected]]:
    """Runs the selection and returns the selected texts and the stage's result."""
    done = ensure(built(config, *measured, transductive=transductive), Context.of(config).store)
    lines = lines_of(done.path)
    assert [set(line) for line in lines] == [{"id", "part", "start", "record", "score", "text"}] * len(lines)
    assert [line["id"] for line in lines] == sorted(line["id"] for line in lines)
    return [line["text"] for line in lines], done


def choosing(config: Config, **changes: Any) -> Config:
    return replace(config, select=replace(config.select, **changes))


def documents(config: Config, number: int) -> Config:
    return choosing(config, per_example=None, documents=number)


def test_the_budget_can_be_set_per_train_example(config: Config) -> None:
    texts, done = select(config)
    assert len(texts) == len(set(texts)) == 3 * len(TRAIN)
    assert set(texts) < set(POOL)
    assert (done.result.documents, done.result.pool) == (15, 40)
    assert select(replace(config, seed=1))[0] != texts


def test_the_budget_per_example_counts_the_texts_of_all_tasks(config: Config, tmp_path: Path) -> None:
    """Texts in the dev or test split of a task do not count as target texts.

    One of the three texts that the test adds is in such a split.
    """
    more = ["one text more", "two texts more", DEV[0]]
    other = replace(config.task, name="other", train=write(tmp_path / "other.jsonl", with_labels(more)))
    assert select(replace(config, tasks=[other]))[1].result.documents == 3 * (len(TRAIN) + 2)


def test_random_documents_have_as_many_tokens_as_the_selection(config: Config) -> None:
    longest = choosing(config, kind="tests.select.pools:Longest", per_example=None, tokens=150)
    texts, done = select(longest)
    tokenizer = load_tokenizer(Path(config.model.path))
    counts = [len(tokenizer(text)["input_ids"]) for text in texts]
    assert done.result.tokens == sum(counts)
    assert 150 <= done.result.tokens < 150 + max(counts)
    control = random_control(Context.of(longest), built(longest))
    beside = ensure(control, Context.of(config).store)
    taken = [line["text"] for line in lines_of(beside.path)]
    assert taken != texts
    counts = [len(tokenizer(text)["input_ids"]) for text in taken]
    assert beside.result.tokens == sum(counts)
    assert done.result.tokens <= beside.result.tokens < done.result.tokens + max(counts)


def test_each_kind_takes_documents_similar_to_the_target(config: Config, tmp_path: Path) -> None:
    """Twelve of the 72 documents of the pool begin with words of the target.

    Each kind of selection must find at least seven of these documents.
    """
    train = write(
        tmp_path / "train.jsonl", with_labels([f"gradient of layer {text}" for text in sentences(30, 1, longest=9)])
    )
    like = [f"gradient of layer {text}" for text in sentences(12, 2, longest=9)]
    pool = write(tmp_path / "pool.jsonl", [{"text": text} for text in [*sentences(60, 3, longest=12), *like]])
    for kind in ("dsir", "classifier", ["dsir", {"classifier": {"ngram": 1}}]):
        options = {"noise": 0.0, "weight": "mean"} if kind == "dsir" else {}
        given = SelectConfig(kind=kind, pool_paths=pool, documents=10)
        chosen = replace(config, task=replace(config.task, train=train), select=given)
        texts, done = select(replace(chosen, select_options={"dsir": options}))
        assert len(set(texts) & set(like)) >= 7, kind
        assert [line["record"] for line in lines_of(done.path)] == [line["id"] + 1 for line in lines_of(done.path)]
        assert done.result.passed == ([72] if isinstance(kind, list) else [])


def test_a_model_scores_on_a_device_of_the_cluster(config: Config, ray_cluster: None) -> None:
    options = {"perplexity": {"low": 0.1, "high": 0.9}}
    band = replace(choosing(documents(config, 5), kind="perplexity"), select_options=options)
    texts, done = select(band)
    assert set(texts) < set(POOL)
    assert len(texts) == 5
    assert all(0 < line["score"] < 1 for line in lines_of(done.path))
    assert done.result.pool == 40
    with pytest.raises(DataError, match=r"only 3\d of the pool's 40 documents can be selected"):
        select(documents(band, 39))  # documents with scores outside the band are never taken


def test_other_text_may_be_the_target(config: Config, tmp_path: Path) -> None:
    target = tmp_path / "target.txt"
    target.write_text("which is longer\nwhich is longer which is longer\nlonger\n")
    options = {"dsir": {"noise": 0.0, "ngram": 1}}
    given = choosing(config, kind="dsir", target_paths=str(target), per_example=2)
    given = replace(given, select_options=options, task=TaskConfig(), corpus=replace(given.corpus, cleaning=[]))
    texts, done = select(given)
    assert done.result.documents == 6
    assert all("which is longer" in text for text in texts)
    target.write_text("\n")
    with pytest.raises(DataError, match=r"no text of select\.target_paths is left"):
        select(given)


def test_another_selection_takes_others_by_its_scores(config: Config) -> None:
    texts, done = select(choosing(config, kind="tests.select.pools:Longest"))
    assert sorted(map(len, texts)) == sorted(map(len, POOL))[-15:]
    assert [line["score"] for line in lines_of(done.path)] == [len(text) for text in texts]


@pytest.mark.parametrize("budget", [{"per_example": 9}, {"documents": 41}, {"tokens": 10_000}])
def test_a_budget_that_is_larger_than_the_pool_is_refused(config: Config, budget: dict[str, int]) -> None:
    none: dict[str, Any] = {"per_example": None, "documents": None, "tokens": None}
    with pytest.raises(DataError, match="only 40 of the pool's 40 documents can be selected") as caught:
        select(choosing(config, **{**none, **budget}))
    assert "lower the budget" in caught.value.fix


def test_test_text_is_only_taken_if_transductive(config: Config) -> None:
    texts, done = select(documents(config, 40))
    assert texts == POOL  # the selected documents keep the pool's order
    assert done.result.dropped == {"in evaluation set dev-and-test": 1}
    assert len(select(documents(config, 41), transductive=True)[0]) == 41


def test_modified_and_partial_copies_of_dev_text_are_never_taken(config: Config, tmp_path: Path) -> None:
    long = TEST[1].upper().replace(" ", "  ")
    part = " ".join(TEST[1].split()[:-2])
    write(tmp_path / "pool.jsonl", [{"text": text} for text in (*POOL, long, DEV[0].title(), part)])
    texts, done = select(documents(config, 40))
    assert texts == POOL
    assert done.result.dropped == {"in evaluation set dev-and-test": 3}


def test_evaluation_sets_of_the_corpus_are_left_out_too(config: Config, tmp_path: Path) -> None:
    questions = write(tmp_path / "questions.jsonl", [{"text": POOL[3]}])
    corpus = replace(config.corpus, decontaminate=[EvaluationSet("questions", questions)])
    texts, _ = select(documents(replace(config, corpus=corpus), 39))
    assert texts == [*POOL[:3], *POOL[4:]]


def test_evaluation_sets_are_excluded_from_the_target_too(config: Config, tmp_path: Path) -> None:
    """Selections and embedders learn from the target, so the target must not contain evaluation text."""
    wanted = sentences(6, seed=77, shortest=20)
    questions = write(tmp_path / "questions.jsonl", [{"text": wanted[2]}])
    corpus = replace(config.corpus, decontaminate=[EvaluationSet("questions", questions)])
    paths = write(tmp_path / "target.jsonl", [{"text": text} for text in wanted])
    config = choosing(replace(config, corpus=corpus), target_paths=paths)
    store = Context.of(config).store
    written = lines_of(ensure(built(config).target, store).path)
    assert [line["text"] for line in written] == [*wanted[:2], *wanted[3:]]
    write(tmp_path / "target.jsonl", [{"text": wanted[2]}])
    with pytest.raises(DataError, match="removing the texts of corpus"):
        ensure(built(config).target, store)


def test_a_repeated_text_is_taken_once(config: Config, tmp_path: Path) -> None:
    write(tmp_path / "pool.jsonl", [{"text": text} for text in (*POOL, *POOL, POOL[0].upper())])
    texts, done = select(documents(config, 40))
    assert len({text.lower() for text in texts}) == 40
    assert done.result.pool == 81
    assert done.result.near_copies > 0
    with pytest.raises(DataError, match=r"only 40 of the .* 41 other documents are near copies"):
        select(documents(config, 41))


def test_the_division_into_files_does_not_change_the_selection(config: Config, tmp_path: Path) -> None:
    # a random selection would change, because its draws depend on document ids, which depend on the division
    config = choosing(config, kind="tests.select.pools:Longest")
    whole, done = select(documents(config, 12))
    (tmp_path / "parts").mkdir()
    lines = (tmp_path / "pool.jsonl").read_text().splitlines(keepends=True)
    for number, start in enumerate((0, 7, 7, 30)):
        (tmp_path / "parts" / f"{number}.jsonl").write_text("".join(lines[start : (7, 7, 30, 99)[number]]))
    parts, other = select(choosing(documents(config, 12), pool_paths=str(tmp_path / "parts")))
    assert parts == whole
    starts = (0, 7, 7, 30)
    for line, same in zip(lines_of(other.path), lines_of(done.path), strict=True):
        assert starts[line["part"]] + line["record"] == same["record"] == same["id"] + 1
        assert place_of(line["id"])[1] + 1 == line["record"]


class Alike(Selection):
    """A selection whose score is the number of words shared with the target."""

    def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
        known = {word for text in target for word in text.split()}
        return (float(len(known & set(text.split()))) for text in pool)


def test_a_selection_sees_the_train_texts_as_they_were_listed(config: Config, tmp_path: Path) -> None:
    """The prepared texts are deleted and the train file is changed.

    The selection must refuse the file instead of reading the new texts under the key of the old texts.
    """
    alike = choosing(config, kind=f"{__name__}:Alike")
    assert len(select(alike)[0]) == 15
    stage, store = (
        built(replace(alike, seed=1, corpus=replace(config.corpus, near_threshold=0.7))),
        Context.of(config).store,
    )
    shutil.rmtree(store.root / "texts")
    shutil.rmtree(store.root / "target")
    write(tmp_path / "train.jsonl", with_labels(["quite another text"] * 3))
    with pytest.raises(DataError, match=r"train\.jsonl has changed since this job first looked at it"):
        ensure(stage, store)


@pytest.mark.parametrize("kind", ["random", "dsir", "classifier"])
def test_a_pool_of_evaluation_text_only_is_refused(kind: str, config: Config, tmp_path: Path) -> None:
    write(tmp_path / "pool.jsonl", [{"text": TEST[1]}, {"text": DEV[0]}, {"text": "x"}])
    with pytest.raises(DataError, match=r"all 3 records were left out \(.*2 in evaluation set dev-and-test"):
        select(choosing(config, kind=kind))


def test_a_pool_with_too_many_broken_records_is_refused(config: Config, tmp_path: Path) -> None:
    with (tmp_path / "pool.jsonl").open("a") as pool:
        pool.write("broken\n")
    with pytest.raises(DataError, match=r"1 of 42 records of the pool are unreadable: 1 malformed JSON \(first: .*42"):
        select(config)
    lenient = replace(config, corpus=replace(config.corpus, max_bad_fraction=0.1))
    assert len(select(lenient)[0]) == 15


def test_an_empty_pool_is_refused(config: Config, tmp_path: Path) -> None:
    write(tmp_path / "pool.jsonl", [])
    with pytest.raises(DataError, match=r"pool\.jsonl: there are no records"):
        select(config)


@dataclass(frozen=True, eq=False)
class Copied(Stage[Prepared]):
    """A stage whose result is a copy of a folder of prepared text."""

    kind = "prepare"

    name: str
    source: Path

    def what(self) -> Mapping[str, Any]:
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[Prepared]:
        shutil.copytree(self.source, folder, dirs_exist_ok=True)
        return Outcome(Prepared(0, 0))


def test_measured_text_is_never_taken(config: Config, tmp_path: Path) -> None:
    shards(tmp_path / "general", [], [text.upper() for text in POOL[:7]])
    texts, done = select(documents(config, 33), Copied("general", tmp_path / "general"))
    assert texts == POOL[7:]
    assert done.result.dropped["measured"] == 7


@dataclass(frozen=True, eq=False)
class CopiedFiles(Prepare):
    """A stage like `Copied` that also knows the source files of its text, so that near copies can be found."""

    source: Path = Path()

    def run(self, folder: Path, done: Done) -> Outcome[Prepared]:
        shutil.copytree(self.source, folder, dirs_exist_ok=True)
        return Outcome(Prepared(0, 0))


def test_near_copies_of_general_text_are_removed_from_the_pool(config: Config, tmp_path: Path) -> None:
    general = [" ".join(f"word{(number * place) % 97}" for place in range(1, 41)) for number in (2, 3)]
    write(tmp_path / "general.jsonl", [{"text": text} for text in general])
    shards(tmp_path / "general", [], general)
    context = Context.of(config)
    files = listed_files(context, replace(config.corpus, paths=str(tmp_path / "general.jsonl")), "general")
    measured = CopiedFiles("general", files, context.tokens, config, source=tmp_path / "general")
    near = general[0].replace("word42 ", "another ")
    assert near != general[0]
    write(tmp_path / "pool.jsonl", [{"text": text} for text in (*POOL, near, general[1].upper())])
    texts, done = select(documents(config, 40), measured)
    assert texts == POOL
    assert done.result.dropped == {"in evaluation set (general)": 2}
