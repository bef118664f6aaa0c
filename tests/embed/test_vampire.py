"""The embedder `vampire`: texts of a topic lie together, whatever passes at once."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from adapt.config import ResourcesConfig
from adapt.embed import vampire
from adapt.embed.embedder import embedder_of
from adapt.embed.learn import learn_embedder
from adapt.embed.text_chunks import LinesSource
from adapt.embed.vampire import WEIGHTS_FILE
from adapt.support.errors import DataError, TrainingError
from adapt.train.training_run import METRICS_FILE, PROGRESS_FILE
from tests.embed.test_vae import trained, training
from tests.embed.toys import TOPIC_OPTIONS, loaded, topical, votes
from tests.samples import write
from tests.train.ranks import Ranks


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


TEXTS = topical(80)[0]
OPTIONS = {**TOPIC_OPTIONS, "least_documents": 1, "epochs": 4, "patience": 4}


def on_rank() -> dict[str, np.ndarray]:
    """The best weights of training without Ray."""
    made = training(80, **OPTIONS)
    trained(made)
    return {name: value.numpy() for name, value in made.best.weights.items()}


@pytest.fixture(scope="module")
def expected() -> Iterator[dict[str, np.ndarray]]:
    group = Ranks(2)
    try:
        yield group.run(on_rank)[0]
    finally:
        group.stop()


def dying(config: dict[str, Any], per_worker: Callable[[dict[str, Any]], None], at: dict[int, Any]) -> None:
    """The ranks of a start of a number that stands in `at` fail at the epoch after the second: rank 1 does."""
    import ray.train

    from adapt.embed.vae import TopicTraining

    folder, rank = Path(config["run"].folder), ray.train.get_context().get_world_rank()
    number = len(list(folder.glob(f"start-{rank}-*")))
    (folder / f"start-{rank}-{number}").touch()
    working = TopicTraining._train

    def train(self: TopicTraining, epoch: int, *arguments: Any) -> float:
        if epoch == 3 and rank == 1 and number in at:
            if at[number] is None:
                os.kill(os.getpid(), signal.SIGKILL)
            raise at[number]
        return working(self, epoch, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopicTraining, "_train", train)
        per_worker(config)


@pytest.mark.slow
def test_a_training_that_fails_and_one_that_is_killed_go_on_from_the_last_epoch(
    tmp_path: Path, ray_cluster: None, monkeypatch: pytest.MonkeyPatch, expected: dict[str, np.ndarray]
) -> None:
    """The first start ends the run by an error of ours, the second is killed by the kernel, the third is left alone."""
    at = {0: TrainingError("the loss is not finite", "lower it"), 1: None}
    per_worker = vampire.topics_per_worker
    monkeypatch.setattr(vampire, "topics_per_worker", lambda config: dying(config, per_worker, at))
    write(tmp_path / "texts.jsonl", [{"id": number, "text": text} for number, text in enumerate(TEXTS)])
    folder = tmp_path / "embedder"
    folder.mkdir()
    embedder, source = embedder_of("vampire", OPTIONS, 0), LinesSource(tmp_path / "texts.jsonl")
    resources = ResourcesConfig(workers=2, max_failures=1)
    with pytest.raises(TrainingError, match="the loss is not finite"):
        learn_embedder(embedder, [source], folder, resources)
    (tmp_path / "texts.jsonl").write_text("gone: the sample is taken once")
    figures = learn_embedder(embedder, [source], folder, resources)
    assert figures["epochs"] == 4
    assert len(list(folder.glob("start-0-*"))) == 3
    lines = (folder / METRICS_FILE).read_text().splitlines()
    assert sum('"npmi"' in line for line in lines) == 4  # no epoch was trained twice, or told twice
    found = load_file(folder / WEIGHTS_FILE)
    assert all(np.array_equal(found[name], value) for name, value in expected.items())
    assert learn_embedder(embedder, [source], folder, resources) == figures
    assert not list(folder.glob("check*")) + list(folder.glob("*.npz"))


def test_an_embedder_without_texts_learns_nothing(tmp_path: Path, ray_cluster: None) -> None:
    (tmp_path / "texts.jsonl").touch()
    source = LinesSource(tmp_path / "texts.jsonl")
    with pytest.raises(DataError, match="there is no text to learn from"):
        learn_embedder(embedder_of("vampire", {}, 0), [source], tmp_path, ResourcesConfig())
