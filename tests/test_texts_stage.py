"""The stages that write the text for TAPT. They need no Ray."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, ModelConfig, StorageConfig, TaptConfig, TaskConfig
from adapt.corpus.heldout import is_heldout
from adapt.errors import DataError
from adapt.runner import Outcome, Record, Stage, Store, ensure
from adapt.select import TEXTS_FILE
from adapt.stages import Catalogue
from tests.corpus.test_heldout import shards

TRAIN = ["the first text", "the second text", "The  DEV text", "the first text", "the test text"]
DEV = ["the dev text", "another dev text"]
TEST = ["the test text", "a sentence of the test split that nobody may see before the end of it all"]


def write(file: Path, records: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    for split, texts in (("train", TRAIN), ("dev", DEV), ("test", TEST)):
        labelled = [{"text": text, "aspect": text.split()[1], "label": "ab"[n % 2]} for n, text in enumerate(texts)]
        write(tmp_path / f"{split}.jsonl", labelled)
    pool = [f"document number {number} of the pool" for number in range(40)]
    write(tmp_path / "pool.jsonl", [{"text": text} for text in (*pool, f"we quote: {TEST[1]}")])
    return Config(
        model=ModelConfig(path=str(tiny_bert)),
        task=TaskConfig(**{split: str(tmp_path / f"{split}.jsonl") for split in ("train", "dev", "test")}),
        training=replace(Config().training, sequence_length=64),
        evaluation=replace(Config().evaluation, sequence_length=64),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def run(stage: Stage, config: Config) -> tuple[list[str], Record]:
    record = ensure(stage, Store(Path(config.storage.root)))
    lines = (record.path / TEXTS_FILE).read_text().splitlines()
    return [json.loads(line)["text"] for line in lines], record


def test_texts_that_stand_in_dev_or_test_are_left_out(config: Config) -> None:
    texts, record = run(Catalogue(config).task_texts([config.task], ["train"], without=["dev", "test"]), config)
    assert texts == ["the first text", "the second text"]  # each once
    assert record.metrics == {"documents": 2, "in_other_splits": 2}


def test_texts_that_another_task_is_tested_on_are_left_out_too(config: Config, tmp_path: Path) -> None:
    write(tmp_path / "other.jsonl", [{"text": "The first  text", "label": "a"}])
    other = replace(config.task, name="other", test=str(tmp_path / "other.jsonl"))
    catalogue = Catalogue(config)
    stage = catalogue.task_texts([config.task], ["train"], without=["dev", "test"], others=[other])
    assert run(stage, config)[0] == ["the second text"]


def test_texts_without_labels_are_kept_away_too(config: Config, tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", [{"text": text} for text in TEST])
    texts, _ = run(Catalogue(config).task_texts([config.task], ["train"], without=["dev", "test"]), config)
    assert texts == ["the first text", "the second text"]


def test_nothing_is_left_to_train_on(config: Config, tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [{"text": "the DEV text", "label": "a"}])
    with pytest.raises(DataError, match="all texts of task stand in dev or test too"):
        run(Catalogue(config).task_texts([config.task], ["train"], without=["dev", "test"]), config)


def test_too_many_broken_records(config: Config, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "good", "label": "a"}\n{"text": "ba\n')
    with pytest.raises(DataError, match=r"1 of 2 records of task\.train are unusable"):
        run(Catalogue(config).task_texts([config.task], ["train"]), config)


def test_a_split_that_changes_after_it_was_listed_is_refused(config: Config, tmp_path: Path) -> None:
    """The key says what stood in it then."""
    catalogue = Catalogue(config)
    stages = [catalogue.task_texts([config.task], ["train"], without=["dev", "test"]), catalogue.task(config.task)]
    write(tmp_path / "dev.jsonl", [{"text": "quite another text", "label": "ab"[n % 2]} for n in range(3)])
    for stage in stages:
        with pytest.raises(DataError, match=r"dev\.jsonl has changed since this job looked at it first"):
            ensure(stage, Store(Path(config.storage.root)))


def test_all_splits_where_that_is_asked_for(config: Config) -> None:
    texts, _ = run(Catalogue(config).task_texts([config.task], ["train", "dev", "test"]), config)
    assert {*DEV, *TEST} < set(texts)


@pytest.mark.parametrize(("aspect", "expected"), [("first", 1), ("something else", 2)])
def test_a_second_text_is_one_of_its_own_unless_the_first_holds_it(
    config: Config, tmp_path: Path, aspect: str, expected: int
) -> None:
    write(tmp_path / "train.jsonl", [{"text": "the first text", "aspect": aspect, "label": "a"}])
    task = replace(config.task, pair_field="aspect")
    assert len(run(Catalogue(config).task_texts([task], ["train"]), config)[0]) == expected


def test_words_of_token_classification_are_joined(config: Config, tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [{"text": ["the", "first"], "label": ["O", "B-x"]}])
    task = replace(config.task, kind="tokens")
    assert run(Catalogue(config).task_texts([task], ["train"]), config)[0] == ["the first"]


def drawn(config: Config, per_example: int, seed: int = 0, **tapt: Any) -> tuple[list[str], Record]:
    pool = str(Path(config.task.train).with_name("pool.jsonl"))  # type: ignore[arg-type]
    given = replace(config, seed=seed, tapt=TaptConfig(pool_paths=pool, random_per_example=per_example, **tapt))
    catalogue = Catalogue(given)
    unseen = None if given.tapt.transductive else catalogue.task_texts([given.task], ["dev", "test"])
    tasks = [catalogue.task(task) for task in (given.task, *given.tasks)]
    return run(catalogue.random_texts(tasks, unseen), given)


def test_so_many_of_the_pool_for_each_train_example(config: Config) -> None:
    texts, record = drawn(config, 3)
    assert len(texts) == len(set(texts)) == 3 * len(TRAIN)
    assert record.metrics["wanted"] == 15
    assert record.metrics["pool"] == 40
    assert drawn(config, 3, seed=1)[0] != texts


def test_so_many_for_the_examples_of_every_task(config: Config) -> None:
    other = replace(config.task, name="other", train=config.task.dev)
    assert drawn(replace(config, tasks=[other]), 3)[1].metrics["wanted"] == 3 * (len(TRAIN) + len(DEV))


def test_nothing_of_a_pool_can_be_drawn(config: Config, tmp_path: Path) -> None:
    write(tmp_path / "pool.jsonl", [{"text": TEST[1]}])
    with pytest.raises(DataError, match="no document of the pool"):
        drawn(config, 3)


def test_what_is_measured_is_never_drawn(config: Config, tmp_path: Path) -> None:
    """Neither general text nor the share that is held out of every corpus."""
    pool = [json.loads(line)["text"] for line in (tmp_path / "pool.jsonl").read_text().splitlines()][:40]
    shards(tmp_path / "general", [], [text.upper() for text in pool[:7]])
    held = replace(config.corpus, heldout_fraction=0.3)
    given = replace(config, corpus=held, tapt=TaptConfig(pool_paths=str(tmp_path / "pool.jsonl"), random_per_example=9))
    catalogue = Catalogue(given)
    general = Stage("prepare", "general", {}, lambda folder, _: copied(tmp_path / "general", folder))
    unseen, task = catalogue.task_texts([given.task], ["dev", "test"]), catalogue.task(given.task)
    texts, record = run(catalogue.random_texts([task], unseen, {"measured general": general}), given)
    wanted = {text for text in pool[7:] if not is_heldout(text, 0.3)}
    assert set(texts) == wanted
    assert 10 < len(wanted) < 33
    assert record.metrics["dropped"]["measured"] == 7


def copied(source: Path, folder: Path) -> Outcome:
    shutil.copytree(source, folder, dirs_exist_ok=True)
    return Outcome({})


def test_test_text_is_never_drawn(config: Config) -> None:
    texts, record = drawn(config, 100)  # more than there are: all
    assert len(texts) == 40
    assert not any(TEST[1] in text for text in texts)
    assert record.metrics["dropped"] == {"in evaluation set dev-and-test": 1}
    assert len(drawn(config, 100, transductive=True)[0]) == 41
