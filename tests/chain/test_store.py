"""Where stages lie, and how they are found again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.chain.record import Record
from adapt.chain.store import Store
from adapt.errors import StageError
from tests.chain.test_record import record

KEY, OTHER = "1a" * 32, "2b" * 32


def finished(store: Store, stage: str, name: str, key: str, **changed: Any) -> Record:
    made = record(store.folder(stage, name, key), stage=stage, name=name, key=key, **changed)
    made.save()
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def test_a_folder_says_stage_name_and_key(store: Store) -> None:
    assert store.folder("train", "demo", KEY) == store.root / "train" / "demo-1a1a1a1a"


def test_nothing_is_found_where_nothing_is(store: Store) -> None:
    assert store.find("train", "demo", KEY) is None
    assert list(store.records()) == []
    assert store.nearest("train", 1, {}, {}) is None


def test_a_stage_is_found_by_its_key_and_not_by_its_name(store: Store) -> None:
    made = finished(store, "train", "demo", KEY)
    assert store.find("train", "demo", KEY) == made
    assert store.find("train", "renamed", KEY) == replace(made, name="renamed")  # what it is called now
    assert store.folder("train", "renamed", KEY) == made.path
    assert store.find("train", "demo", OTHER) is None
    assert store.find("evaluate", "demo", KEY) is None


def test_a_renamed_or_linked_folder_is_found(store: Store, tmp_path: Path) -> None:
    made = finished(store, "train", "demo", KEY)
    renamed = made.path.rename(made.path.with_name("best-of-all-1a1a1a1a"))
    assert store.find("train", "demo", KEY) == made
    elsewhere = renamed.rename(tmp_path / "archive")
    renamed.symlink_to(elsewhere)
    found = store.find("train", "demo", KEY)
    assert found == made
    assert found.path.resolve() == elsewhere


@pytest.mark.parametrize("root", ["runs [1]", "a*b", "with space", "ünïcode"])
def test_a_root_of_any_name_works(tmp_path: Path, root: str) -> None:
    store = Store(tmp_path / root)
    made = finished(store, "train", "demo [x] *?", KEY)
    assert store.find("train", "another", KEY) == replace(made, name="another")
    assert list(store.records("train")) == [made]


def test_an_unfinished_folder_is_used_again(store: Store) -> None:
    half = store.root / "train" / "earlier-1a1a1a1a"
    half.mkdir(parents=True)
    assert store.folder("train", "demo", KEY) == half
    assert store.find("train", "demo", KEY) is None


def test_a_key_that_only_begins_like_another_is_not_it(store: Store) -> None:
    finished(store, "train", "demo", KEY)
    assert store.find("train", "demo", KEY[:8] + OTHER[8:]) is None


def test_an_unreadable_record_names_its_folder(store: Store) -> None:
    made = finished(store, "train", "demo", KEY)
    (made.path / "stage.json").write_text("{")
    for look in (lambda: store.find("train", "demo", KEY), lambda: list(store.records())):
        with pytest.raises(StageError, match=str(made.path)):
            look()


def test_records_are_the_finished_ones_of_a_kind(store: Store) -> None:
    second = finished(store, "train", "b", KEY)
    first = finished(store, "train", "a", OTHER)
    other = finished(store, "evaluate", "c", KEY)
    (store.root / "train" / "half-00000000").mkdir()
    assert list(store.records("train")) == [first, second]
    assert list(store.records()) == [other, first, second]


def inputs(**keys: str) -> dict[str, dict[str, str]]:
    return {name: {"stage": "prepare", "key": key, "path": "/x"} for name, key in keys.items()}


def test_the_nearest_differs_in_the_fewest_ingredients(store: Store) -> None:
    finished(store, "train", "a", "01" * 32, what={"rate": 3, "seed": 1}, inputs=inputs(corpus=KEY))
    near = finished(store, "train", "b", "02" * 32, what={"rate": 2, "seed": 0}, inputs=inputs(corpus=KEY))
    finished(store, "train", "c", "03" * 32, what={"rate": 2, "seed": 0}, inputs=inputs(corpus=OTHER))
    finished(store, "evaluate", "d", "04" * 32, what={"rate": 1, "seed": 0}, inputs=inputs(corpus=KEY))
    found = store.nearest("train", 1, {"rate": 1, "seed": 0}, {"corpus": KEY})
    assert found == (near, ["rate: 2 -> 1"])


def test_inputs_and_version_count_as_differences(store: Store) -> None:
    made = finished(store, "train", "a", "01" * 32, what={"rate": 1}, inputs=inputs(corpus=KEY, gone=KEY))
    found = store.nearest("train", 2, {"rate": 1}, {"corpus": OTHER, "general": KEY})
    assert found is not None
    assert found[0] == made
    assert found[1] == [
        "input corpus: 1a1a1a1a… -> 2b2b2b2b…",
        "input general: (not there) -> 1a1a1a1a…",
        "input gone: 1a1a1a1a… -> (not there)",
        "version of the stage's code: 1 -> 2",
    ]
