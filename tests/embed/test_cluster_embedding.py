"""Tests the actor that embeds chunks of texts, and the check of an embedder on a sample. Ray is not started."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapt.embed.cluster_embedding import PLACES, TEXTS_A_PLACE, EmbedChunks, check_known, some_of, unknown_share
from adapt.embed.embedder import EmbeddedTexts, embedder_of
from adapt.embed.text_chunks import LinesSource, chunk_table, read_lines
from adapt.ray import runtime
from adapt.support.errors import DataError
from tests.embed.toys import Lengths


class Broken(Lengths):
    """An embedder whose vectors are not finite, like a model with broken weights."""

    def embed(self, texts: list[str]) -> EmbeddedTexts:  # type: ignore[override]
        found = super().embed(texts)
        found.vectors[1, 0] = np.nan
        return found


def test_a_vector_that_is_not_finite_is_refused_with_the_id_of_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "hide_unreserved_gpus", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    embed = EmbedChunks(Broken(Broken.Options(), 0), None, tmp_path, "float16", 1)
    chunk = chunk_table(0, 0, [(2**24 + 1, "a"), (2**24 + 3, "a text"), (2**24 + 5, "b")], "{}")
    with pytest.raises(DataError, match=f"the text with id {2**24 + 3} is not finite") as caught:
        embed(chunk)
    assert "weights" in caught.value.fix
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("count", [0, 1, PLACES, PLACES + 1, 1000])
def test_sampled_items_are_evenly_spread(count: int) -> None:
    chosen = [item["item"] for item in some_of([{"item": number} for number in range(count)])]
    assert len(set(chosen)) == len(chosen) == min(count, PLACES)
    if count:
        assert max(b - a for a, b in zip([0, *chosen], [*chosen, count], strict=True)) <= -(-count // PLACES) + 1


def test_the_sample_reads_only_the_first_texts_of_an_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapt.ray.runtime.hide_unreserved_gpus", lambda: None)
    monkeypatch.setattr("adapt.embed.text_chunks.EMBEDDED_CHARACTERS", 1)
    lines = [json.dumps({"id": number, "text": "a?" if number < 4 else "a"}) for number in range(TEXTS_A_PLACE)]
    (tmp_path / "texts.jsonl").write_text("\n".join([*lines, "is never read"]))
    items: list[dict[str, Any]] = LinesSource(tmp_path / "texts.jsonl").items()
    share = unknown_share(read_lines, items, embedder_of("tests.embed.toys:Lengths", {}, 0), None)
    assert share == 4 / TEXTS_A_PLACE


def test_text_that_the_embedder_does_not_know_is_refused() -> None:
    check_known(0.2)
    check_known(0.35, most=0.4)
    with pytest.raises(DataError, match="21% of the text is unknown"):
        check_known(0.21)
    with pytest.raises(DataError, match="21% of the texts have no word that the embedder learnt from the pool"):
        check_known(0.21, learns=True)
