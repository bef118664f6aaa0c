"""An actor that embeds: what it must refuse in its first chunk. Ray is not started."""

from pathlib import Path

import numpy as np
import pytest

from adapt.embed import run
from adapt.embed.base import EmbeddedTexts
from adapt.embed.run import EmbedChunks
from adapt.embed.sources import chunk_table
from adapt.errors import DataError
from tests.embed.toys import Lengths


class Broken(Lengths):
    """As of a model whose weights are broken."""

    def embed(self, texts: list[str]) -> EmbeddedTexts:  # type: ignore[override]
        found = super().embed(texts)
        found.vectors[1, 0] = np.nan
        return found


def test_a_vector_that_is_not_finite_is_refused_with_the_id_of_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "hide_unreserved_gpus", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    embed = EmbedChunks(Broken(Broken.Options(), 0), None, tmp_path, "float16", 1)
    chunk = chunk_table(0, 0, [(2**24 + 1, "a"), (2**24 + 3, "a text"), (2**24 + 5, "b")], "{}")
    with pytest.raises(DataError, match=f"the text with id {2**24 + 3} is not finite") as caught:
        embed(chunk)
    assert "weights" in caught.value.fix
    assert not list(tmp_path.iterdir())
