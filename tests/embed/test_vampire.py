"""Tests the embedder `vampire`: texts of a topic are near each other, and vectors do not depend on the batch."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapt.config import ResourcesConfig
from adapt.embed import cluster_embedding, vae
from adapt.embed.cluster_embedding import learn_embedder
from adapt.embed.embedder import Embedder, embedder_of
from adapt.embed.text_chunks import LinesSource
from adapt.embed.vae import WEIGHTS_FILE
from adapt.support.errors import DataError, TrainingError
from adapt.train.metric_trackers import File
from adapt.train.training_run import METRICS_FILE
from tests.embed.toys import TOPIC_OPTIONS, loaded, topical, votes
from tests.samples import write


def test_texts_are_near_their_topic_and_topics_are_coherent(tmp_path: Path) -> None:
    texts, labels = topical(300)
    vectors = loaded("vampire", tmp_path, texts=texts, **TOPIC_OPTIONS).embed(texts).vectors
    assert votes(vectors, labels) > 0.9
    assert vectors.shape == (300, 6)
    logged = map(json.loads, (tmp_path / METRICS_FILE).read_text().splitlines())
    # slow epochs also log progress lines, which have no `npmi`
    assert max(line["npmi"] for line in logged if "npmi" in line) > 0.05


def test_vectors_do_not_depend_on_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*topical(60)[0], "none of these"]
    embedder = loaded("vampire", tmp_path, texts=texts, **{**TOPIC_OPTIONS, "epochs": 1})
    whole = embedder.embed(texts)
    assert (whole.seen, whole.unknown) == (61, 1)
    monkeypatch.setattr(vae, "EMBEDDED_AT_ONCE", 7)
    np.testing.assert_allclose(embedder.embed(texts).vectors, whole.vectors, atol=1e-4)


def dying(embedder: Embedder, texts: list[str], folder: Path) -> dict[str, float]:
    """Calls `learn_in_task`, and interrupts the first two calls when they report epoch 3.

    The first call raises an error, and the process of the second call is killed.
    """
    from adapt.embed.cluster_embedding import learn_in_task

    number = len(list(folder.glob("start-*")))
    (folder / f"start-{number}").touch()

    def log(self: File, metrics: dict[str, Any], step: int) -> None:
        if metrics.get("epoch") == 3 and number == 0:
            raise TrainingError("the loss is not finite", "lower it")
        if metrics.get("epoch") == 3 and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        working(self, metrics, step)

    working = File.log
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(File, "log", log)
        return learn_in_task(embedder, texts, folder)


@pytest.mark.slow
def test_failed_and_killed_trainings_resume_from_the_last_epoch(
    tmp_path: Path, ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = topical(80)[0]
    write(tmp_path / "texts.jsonl", [{"id": number, "text": text} for number, text in enumerate(texts)])
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    options = {**TOPIC_OPTIONS, "least_documents": 1, "epochs": 4, "patience": 4}
    embedder, source = embedder_of("vampire", options, 0), LinesSource(tmp_path / "texts.jsonl")
    expected = learn_embedder(embedder, [source], tmp_path / "whole", ResourcesConfig())
    assert (expected["texts"], expected["epochs"]) == (80, 4)
    monkeypatch.setattr(cluster_embedding, "learn_in_task", dying)
    folder = tmp_path / "stopped"
    with pytest.raises(TrainingError, match="the loss is not finite"):
        learn_embedder(embedder, [source], folder, ResourcesConfig())
    assert learn_embedder(embedder, [source], folder, ResourcesConfig()) == expected
    assert len(list(folder.glob("start-*"))) == 3
    lines = (folder / METRICS_FILE).read_text().splitlines()
    assert sum('"npmi"' in line for line in lines) == 4  # no epoch was trained or reported twice
    assert (folder / WEIGHTS_FILE).read_bytes() == (tmp_path / "whole" / WEIGHTS_FILE).read_bytes()
    assert not list(folder.glob("*.pt"))


def test_an_embedder_without_texts_learns_nothing(tmp_path: Path, ray_cluster: None) -> None:
    (tmp_path / "texts.jsonl").touch()
    source = LinesSource(tmp_path / "texts.jsonl")
    with pytest.raises(DataError, match="there is no text to learn from"):
        learn_embedder(embedder_of("vampire", {}, 0), [source], tmp_path, ResourcesConfig())
