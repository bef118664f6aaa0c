"""The id of a document: it counts the records of all slices of its item, and does not run into the next item's."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from adapt.config import CorpusConfig
from adapt.corpus.files.sources import Slice
from adapt.corpus.screening import item
from adapt.corpus.screening.item import ITEM_IDS, item_texts
from adapt.corpus.screening.tally import Tally
from adapt.errors import DataError

MODULES = ['"""First of all, a module."""\ndef f():\n    """x"""\n', "y = 1\n", '"""Third of all, a module."""\n']


@pytest.fixture
def sources(tmp_path: Path) -> str:
    """An item of three slices, the second without a record; the second record of the first is too short."""
    slices = []
    for number, text in enumerate(MODULES):
        (tmp_path / f"{number}.py").write_text(text)
        slices.append(asdict(Slice(str(tmp_path / f"{number}.py"))))
    return json.dumps(slices)


CORPUS = CorpusConfig(source="docstrings", cleaning=[{"length": {"min_characters": 5}}])


def test_records_are_counted_over_all_slices_of_an_item(sources: str) -> None:
    tally = Tally()
    found = list(item_texts(3, sources, CORPUS, tally))
    assert found == [(3 * ITEM_IDS, "First of all, a module."), (3 * ITEM_IDS + 2, "Third of all, a module.")]
    assert (tally.kept, tally.seen) == (2, 3)


def test_an_item_with_more_records_than_ids_is_refused(sources: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item, "ITEM_IDS", 2)
    with pytest.raises(DataError, match=r"2\.py has more than 2 records"):
        list(item_texts(0, sources, CORPUS, Tally()))
