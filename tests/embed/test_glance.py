"""A look at a few texts: from all over, and strict only where it is clear."""

import json
from pathlib import Path
from typing import Any

import pytest

from adapt.embed.glance import PLACES, TEXTS_A_PLACE, _unknown_share, check_known, some_of
from adapt.embed.sources import LinesSource, read_lines
from adapt.embed.table import embedder_of
from adapt.errors import DataError


@pytest.mark.parametrize("count", [0, 1, PLACES, PLACES + 1, 1000])
def test_items_are_from_all_over(count: int) -> None:
    chosen = [item["item"] for item in some_of([{"item": number} for number in range(count)])]
    assert len(set(chosen)) == len(chosen) == min(count, PLACES)
    if count:
        assert max(b - a for a, b in zip([0, *chosen], [*chosen, count], strict=True)) <= -(-count // PLACES) + 1


def test_no_more_is_read_of_an_item_than_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapt.embed.glance.hide_unreserved_gpus", lambda: None)
    monkeypatch.setattr("adapt.embed.sources.EMBEDDED_CHARACTERS", 1)
    lines = [json.dumps({"id": number, "text": "a?" if number < 4 else "a"}) for number in range(TEXTS_A_PLACE)]
    (tmp_path / "texts.jsonl").write_text("\n".join([*lines, "is never read"]))
    items: list[dict[str, Any]] = LinesSource(tmp_path / "texts.jsonl").items()
    share = _unknown_share(read_lines, items, embedder_of("tests.embed.toys:Lengths", {}, 0), None)
    assert share == 4 / TEXTS_A_PLACE


def test_what_is_known_too_little_is_refused() -> None:
    check_known(0.2)
    check_known(0.35, most=0.4)
    with pytest.raises(DataError, match="knows nothing of 21%"):
        check_known(0.21)
