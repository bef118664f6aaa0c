"""Tests that entities from files and taggers have the right positions after cleaning, or are refused with a reason."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapt.config import CorpusConfig
from adapt.corpus.entities import Tagged, Tagger, parse_entities, tagged, without_overlaps
from adapt.corpus.files.formats import Bad
from adapt.corpus.files.records import Reading, check_field, read_records
from adapt.corpus.screening import Tally, clean
from adapt.support.errors import ConfigError, DataError

ANYTHING = CorpusConfig(cleaning=[])
TEXT = "the gradient of the loss"


class Failing(Tagger):
    def entities(self, text: str) -> list[tuple[int, int]]:
        raise KeyError(text[:3])


class Beyond(Tagger):
    def entities(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text) + 1)]


class FirstWords(Tagger):
    def entities(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text.split()[0]))]


class NeedsMore(Tagger):
    def __init__(self, model: str) -> None:
        pass

    def entities(self, text: str) -> list[tuple[int, int]]:
        return []


def not_a_class(text: str) -> list[tuple[int, int]]:
    raise AssertionError("a configuration may not call it")


def file_of(folder: Path, kind: str, records: list[dict[str, Any]]) -> Path:
    path = folder / f"corpus.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_entities_are_read_with_their_texts(tmp_path: Path, kind: str) -> None:
    found = [[[0, 3], [4, 12]], [], None]
    path = file_of(tmp_path, kind, [{"text": TEXT, "names": entities} for entities in found])
    records = list(read_records(path, Reading(entity_field="names")))
    assert [str(record) for record in records] == [TEXT] * 3
    assert [record.entities for record in records if isinstance(record, Tagged)] == [[(0, 3), (4, 12)], [], []]
    assert not any(isinstance(record, Tagged) for record in read_records(path, Reading()))
    absent = list(read_records(path, Reading(entity_field="other")))
    assert [record.entities for record in absent if isinstance(record, Tagged)] == [[], [], []]


@pytest.mark.parametrize(
    "entities", [[[0, 25]], [[3, 3]], [[4, 2]], [[-1, 2]], [[0, 1, 2]], [[0.5, 2]], ["ab"], "ab", 7, [7], [[True, 2]]]
)
def test_malformed_entities_are_bad_records_with_a_reason(tmp_path: Path, entities: Any) -> None:
    path = file_of(tmp_path, "jsonl", [{"text": TEXT, "names": entities}, {"text": TEXT, "names": [[0, 24]]}])
    records = list(read_records(path, Reading(entity_field="names")))
    assert isinstance(records[0], Bad)
    tally = Tally()
    assert len(list(clean(records, ANYTHING, tally, "file"))) == 1
    assert tally.bad == {"malformed entities": 1}


def test_a_missing_entity_field_is_refused_at_the_first_record(tmp_path: Path) -> None:
    path = file_of(tmp_path, "jsonl", [{"text": TEXT}])
    with pytest.raises(DataError, match="has no field 'names'; it has 'text'") as caught:
        check_field(path, "names", "set objective.entity_field", needs_fields=True)
    assert caught.value.fix == "set objective.entity_field"
    (tmp_path / "a.txt").write_text(TEXT)
    with pytest.raises(DataError, match="plain text, which has no field 'names'"):
        check_field(tmp_path / "a.txt", "names", "", needs_fields=True)


@given(st.text(st.sampled_from("ab \n\x00\x07\x7f"), max_size=30), st.data())
def test_cleaning_moves_entities_with_their_text(text: str, data: st.DataObject) -> None:
    """An entity covers the same text after cleaning, without the removed control characters and outer spaces.

    An entity is removed if none of its characters remains.
    """
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    (record,) = [*clean([Tagged.of(text, [(start, end)])], ANYTHING, Tally(), "file")] or [None]
    if record is None:
        return
    assert isinstance(record, Tagged)
    before, inside, after = (
        "".join(character for character in part if character not in "\x00\x07\x7f")
        for part in (text[:start], text[start:end], text[end:])
    )
    inside = inside if before.strip() else inside.lstrip()
    inside = inside if after.strip() else inside.rstrip()
    covered = [record[first:last] for first, last in record.entities]
    assert covered == ([inside] if inside else [])
    if inside:
        assert record[: record.entities[0][0]] == before.lstrip() if before.strip() else True


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8)).map(lambda pair: (pair[0], sum(pair)))))
def test_the_first_and_longest_of_overlapping_entities_is_kept(entities: list[tuple[int, int]]) -> None:
    kept = without_overlaps(entities)
    assert kept == sorted(kept)
    assert all(left[1] <= right[0] for left, right in pairwise(kept))
    for start, end in entities:
        assert any(first <= start < last for first, last in kept)
        assert (start, end) in kept or any(first < end and start < last for first, last in kept)


def test_parse_entities_accepts_only_pairs_of_integers() -> None:
    assert parse_entities([(0, 2), [2, 4]], 4) == [(0, 2), (2, 4)]
    assert parse_entities(iter([(0, 2)]), 4) == [(0, 2)]
    assert parse_entities([(0, 5)], 4) is None


def test_taggers() -> None:
    assert tagged(["the loss", "data"], f"{__name__}:FirstWords") == [[(0, 3)], [(0, 4)]]
    with pytest.raises(DataError, match=r"Failing failed on 'the loss': KeyError\('the'\)"):
        tagged(["the loss"], f"{__name__}:Failing")
    with pytest.raises(DataError, match=r"Beyond did not return pairs \[start, end\) for 'the loss'"):
        tagged(["the loss"], f"{__name__}:Beyond")
    with pytest.raises(DataError, match="NeedsMore cannot be created: TypeError"):
        tagged(["the loss"], f"{__name__}:NeedsMore")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("spans", "objective.tagger: there is no 'spans'"),
        (":spans", "objective.tagger:  cannot be imported"),
        ("no_such_module:spans", "no_such_module cannot be imported"),
        ("no_such.module:spans", "no_such.module cannot be imported"),
        ("json:spans", "json has no spans"),
        ("os:system", "os:system is not a subclass of Tagger"),
        ("subprocess:Popen", "subprocess:Popen is not a subclass of Tagger"),
        # a mock has every attribute, also those of a Tagger
        ("unittest.mock:call", "unittest.mock:call is not a subclass of Tagger"),
        (f"{__name__}:not_a_class", "not_a_class is not a subclass of Tagger"),
        ("adapt.corpus.entities:Tagger", "Tagger lacks entities"),
    ],
)
def test_names_of_other_code_than_taggers_are_refused_and_not_called(name: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        tagged([TEXT], name)
