"""No text is measured and trained on, in any job, whatever files hold it. Texts are prepared; nothing is trained."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from adapt.config import (
    Config,
    CorpusConfig,
    EvaluationConfig,
    MixtureConfig,
    ModelConfig,
    SourceConfig,
    StorageConfig,
    TaptConfig,
    TaskConfig,
)
from adapt.corpus.heldout import Measured
from adapt.corpus.minhash import estimated_jaccard, signatures
from adapt.corpus.tokens import TokenStream
from adapt.runner import Record, Stage, Store, ensure
from adapt.schema import HELDOUT_GLOB, SHARD_GLOB
from adapt.stages import Catalogue
from tests.samples import sentences

pytestmark = pytest.mark.usefixtures("ray_cluster")


def write(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text, "label": "ab"[n % 2]}) + "\n" for n, text in enumerate(texts)))
    return str(path)


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    """Three sources, general text, a pool and a task that have much of their text in common, in other forms."""
    draw, texts = random.Random(0), sentences(240, 1, shortest=30, longest=60)

    def some(first: int, last: int, name: str) -> str:
        """Own texts, and of what all have in common every third as it is, in capitals, or with another end."""
        shared = [[text, text.upper(), text.rsplit(" ", 1)[0] + " changed"][draw.randrange(3)] for text in texts]
        return write(tmp_path / f"{name}.jsonl", [*texts[first:last], *draw.sample(shared, 60)])

    general = some(0, 50, "general")
    splits = {split: write(tmp_path / f"{split}.jsonl", texts[n::40][:6]) for n, split in enumerate(("dev", "test"))}
    return Config(
        model=ModelConfig(path=str(tiny_bert)),
        corpus=CorpusConfig(
            sources=[SourceConfig(name, paths=some(60 * n, 60 * n + 80, name)) for n, name in enumerate("abc")],
            heldout_fraction=0.3,
        ),
        mixture=MixtureConfig(replay_paths=general),
        evaluation=EvaluationConfig(sequence_length=64, general_paths=general),
        task=TaskConfig(train=some(100, 130, "train"), domain="a", **splits),
        tapt=TaptConfig(pool_paths=some(90, 150, "pool")),
        training=replace(Config().training, sequence_length=64, max_steps=10),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def all_of(stage: Stage) -> Iterator[Stage]:
    yield stage
    for needed in stage.inputs.values():
        yield from all_of(needed)


def texts_of(kind: str, stage: Stage, store: Store) -> dict[str, Record]:
    """The prepared texts that stages of a kind read."""
    found = [text for each in all_of(stage) if each.stage == kind for text in each.inputs.values()]
    return {text.key: ensure(text, store) for text in found if text.stage == "prepare"}


def documents(records: dict[str, Record], pattern: str) -> set[tuple[int, ...]]:
    """As tokens, which say nothing of case and spaces."""
    streams = [TokenStream.open(record.path, pattern) for record in records.values()]
    return {tuple(stream.document(n).tolist()) for stream in streams for n in range(stream.documents)}


def near(one: set[tuple[int, ...]], other: set[tuple[int, ...]]) -> int:
    """Pairs that are alike, by runs of five tokens."""
    some, others = (signatures([" ".join(map(str, each)) for each in side], 5, 256) for side in (one, other))
    return sum(int((estimated_jaccard(row, others) >= 0.8).sum()) for row in some)


JOBS = {
    "general text is replayed": ("dapt", {}),
    "general text is replayed, near copies": ("dapt", {"deduplicate": "near"}),
    "general text by itself": ("dapt", {}),
    "domains in sequence": ("sequence", {}),
    "domains in sequence, near copies": ("sequence", {"deduplicate": "near"}),
    "a task and a pool": ("tapt", {}),
}


@pytest.mark.parametrize("case", JOBS)
def test_nothing_that_is_measured_is_trained_on(config: Config, tmp_path: Path, case: str) -> None:
    job, changes = JOBS[case]
    if case == "general text by itself":  # files of its own, so all of it is measured
        alone = write(tmp_path / "alone.jsonl", sentences(240, 1, shortest=30, longest=60)[::5])
        config = replace(config, evaluation=replace(config.evaluation, general_paths=alone))
    catalogue = Catalogue(replace(config, corpus=replace(config.corpus, **changes)))
    stage, store = getattr(catalogue, job)(), Store(catalogue.root)
    measured, trained = texts_of("evaluate", stage, store), texts_of("train", stage, store)
    held, learnt = documents(measured, HELDOUT_GLOB), documents(trained, SHARD_GLOB)
    assert len(held) > 20
    assert len(learnt) > 100
    assert not held & learnt
    paths = [record.path for record in measured.values()]
    assert Measured.of(paths).count_in([record.path for record in trained.values()]) == 0
    if changes:
        assert near(held, learnt) == 0
