"""The stage that takes a part of a pool: how much of it, what never, and by which scores. Needs no Ray."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, ModelConfig, SelectConfig, StorageConfig, TaptConfig, TaskConfig
from adapt.corpus.roles import pooled_corpus
from adapt.corpus.screening.heldout import is_heldout
from adapt.errors import DataError
from adapt.runner import Done, Finished, Outcome, Stage, ensure
from adapt.select import TEXTS_FILE
from adapt.select.base import Selection
from adapt.stage.context import Context
from adapt.stage.listing import listed_files
from adapt.stage.prepare import Prepared
from adapt.stage.select import Select, Selected
from adapt.stage.task import task_of
from adapt.stage.task_texts import TaskSplit, TaskTexts
from tests.corpus.screening.test_heldout import shards
from tests.samples import with_labels, write

TRAIN = [f"the text of number {number}" for number in range(5)]
DEV = ["the dev text", "another dev text"]
TEST = ["the test text", "a sentence of the test split that nobody may see before the end of it all"]
POOL = [f"document number {number} of the pool" + " which is longer" * (number % 7) for number in range(40)]


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    """A pool of which one document quotes the test split."""
    splits: dict[str, Any] = {
        split: write(tmp_path / f"{split}.jsonl", with_labels(texts))
        for split, texts in (("train", TRAIN), ("dev", DEV), ("test", TEST))
    }
    pool = write(tmp_path / "pool.jsonl", [{"text": text} for text in (*POOL, f"we quote: {TEST[1]}")])
    return Config(
        model=ModelConfig(path=str(tiny_bert)),
        task=TaskConfig(**splits),
        tapt=TaptConfig(pool_paths=pool, random_per_example=3),
        training=replace(Config().training, sequence_length=64),
        evaluation=replace(Config().evaluation, sequence_length=64),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def built(config: Config, *measured: Stage[Prepared], transductive: bool = False) -> Select:
    context, task = Context.of(config), config.task
    unseen = TaskTexts("unseen", tuple(TaskSplit.of(task, split, context.digests) for split in ("dev", "test")))
    return Select(
        name="selected",
        select=config.select,
        per_example=config.tapt.random_per_example or 0,
        seed=config.seed,
        pool=listed_files(context, pooled_corpus(config), "pool"),
        tasks=tuple(task_of(context, each) for each in (task, *config.tasks)),
        unseen=None if transductive else unseen,
        measured=measured,
    )


def select(
    config: Config, *measured: Stage[Prepared], transductive: bool = False
) -> tuple[list[str], Finished[Selected]]:
    """What the stage takes, and its record."""
    done = ensure(built(config, *measured, transductive=transductive), Context.of(config).store)
    lines = [json.loads(line) for line in (done.path / TEXTS_FILE).read_text().splitlines()]
    assert [set(line) for line in lines] == [{"id", "score", "text"}] * len(lines)
    return [line["text"] for line in lines], done


def per_example(config: Config, number: int) -> Config:
    return replace(config, tapt=replace(config.tapt, random_per_example=number))


def test_so_many_of_the_pool_are_taken_for_each_train_example(config: Config) -> None:
    texts, done = select(config)
    assert len(texts) == len(set(texts)) == 3 * len(TRAIN)
    assert set(texts) < set(POOL)
    assert (done.result.documents, done.result.wanted, done.result.pool) == (15, 15, 40)
    assert select(replace(config, seed=1))[0] != texts


def test_so_many_are_taken_for_the_examples_of_every_task(config: Config) -> None:
    other = replace(config.task, name="other", train=config.task.dev)
    assert select(replace(config, tasks=[other]))[1].result.wanted == 3 * (len(TRAIN) + len(DEV))


def test_another_selection_takes_others_by_its_scores(config: Config) -> None:
    texts, done = select(replace(config, select=SelectConfig("tests.select.longest:Longest")))
    assert sorted(map(len, texts)) == sorted(map(len, POOL))[-15:]
    scores = [json.loads(line)["score"] for line in (done.path / TEXTS_FILE).read_text().splitlines()]
    assert scores == [len(text) for text in texts]


def test_a_pool_that_is_too_small_is_taken_whole(config: Config) -> None:
    texts, done = select(per_example(config, 100))
    assert texts == POOL  # in the pool's order
    assert (done.result.documents, done.result.wanted) == (40, 500)


def test_test_text_is_never_taken_unless_that_is_asked_for(config: Config) -> None:
    texts, done = select(per_example(config, 100))
    assert not any(TEST[1] in text for text in texts)
    assert done.result.dropped == {"in evaluation set dev-and-test": 1}
    assert len(select(per_example(config, 100), transductive=True)[0]) == 41


class Alike(Selection):
    """A score is the number of words that a text shares with the tasks' texts."""

    def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
        known = {word for text in target for word in text.split()}
        return (float(len(known & set(text.split()))) for text in pool)


def test_a_selection_sees_the_train_texts_as_they_were_listed(config: Config, tmp_path: Path) -> None:
    """Also where the task was prepared before, and so is not read again."""
    alike = replace(config, select=SelectConfig(f"{__name__}:Alike"))
    assert len(select(alike)[0]) == 15
    stage, store = built(replace(alike, seed=1)), Context.of(config).store
    write(tmp_path / "train.jsonl", with_labels(["quite another text"] * 3))
    with pytest.raises(DataError, match=r"train\.jsonl has changed since this job looked at it first"):
        ensure(stage, store)


def test_a_pool_of_which_nothing_can_be_taken_is_refused(config: Config, tmp_path: Path) -> None:
    write(tmp_path / "pool.jsonl", [{"text": TEST[1]}])
    with pytest.raises(DataError, match="no document of the pool"):
        select(config)


@dataclass(frozen=True, eq=False)
class Copied(Stage[Prepared]):
    """Text that was prepared elsewhere."""

    kind = "prepare"

    name: str
    source: Path

    def what(self) -> Mapping[str, Any]:
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[Prepared]:
        shutil.copytree(self.source, folder, dirs_exist_ok=True)
        return Outcome(Prepared(0, 0))


def test_what_is_measured_is_never_taken(config: Config, tmp_path: Path) -> None:
    """Neither general text nor the share that is held out of every corpus."""
    shards(tmp_path / "general", [], [text.upper() for text in POOL[:7]])
    held = replace(per_example(config, 9), corpus=replace(config.corpus, heldout_fraction=0.3))
    texts, done = select(held, Copied("general", tmp_path / "general"))
    wanted = {text for text in POOL[7:] if not is_heldout(text, 0.3)}
    assert set(texts) == wanted
    assert 10 < len(wanted) < 33
    assert done.result.dropped["measured"] == 7
