"""The embedder `vampire`: texts of a topic lie together, whatever passes at once."""

import json
from pathlib import Path

import numpy as np
import pytest

from adapt.embed import vampire
from adapt.train.job import PROGRESS_FILE
from tests.embed.toys import TOPIC_OPTIONS, loaded, topical, votes


def test_texts_lie_beside_those_of_their_topic_and_topics_are_coherent(tmp_path: Path) -> None:
    texts, labels = topical(300)
    vectors = loaded("vampire", tmp_path, texts=texts, **TOPIC_OPTIONS).embed(texts).vectors
    assert votes(vectors, labels) > 0.9
    assert vectors.shape == (300, 6)
    assert json.loads((tmp_path / PROGRESS_FILE).read_text())["npmi"] > 0.05


def test_vectors_do_not_depend_on_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*topical(60)[0], "none of these"]
    embedder = loaded("vampire", tmp_path, texts=texts, **{**TOPIC_OPTIONS, "epochs": 1})
    whole = embedder.embed(texts)
    assert (whole.seen, whole.unknown) == (61, 1)
    monkeypatch.setattr(vampire, "EMBEDDED_AT_ONCE", 7)
    np.testing.assert_allclose(embedder.embed(texts).vectors, whole.vectors, atol=1e-4)
