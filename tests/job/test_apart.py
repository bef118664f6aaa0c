"""No job measures text that it trains on, whichever files contain the text.

The tests prepare text and train nothing.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from adapt.corpus.token_shards import TokenStream
from adapt.job.sequence_job import sequence_stages
from adapt.job.training_jobs import dapt_stages, tapt_stages
from adapt.runner import Stage, Store, ensure
from adapt.stage.context import Context
from adapt.support.schema import HELDOUT_GLOB, SHARD_GLOB
from tests.job.worlds import tree
from tests.samples import sentences, with_labels, write

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Config:
    """Returns a configuration with three sources, general text, a pool and a task. Their texts partly overlap.

    All jobs share one store, so each text is prepared once.
    """
    folder = tmp_path_factory.mktemp("apart")
    draw, texts = random.Random(0), sentences(240, 1, shortest=30, longest=60)

    def file(name: str, texts: list[str]) -> str:
        return write(folder / f"{name}.jsonl", with_labels(texts))

    def some(first: int, last: int, name: str) -> str:
        """Writes a range of the texts, and 60 random texts that are unchanged, in capitals or have a new last word."""
        shared = [[text, text.upper(), text.rsplit(" ", 1)[0] + " changed"][draw.randrange(3)] for text in texts]
        return file(name, [*texts[first:last], *draw.sample(shared, 60)])

    general = some(0, 50, "general")
    splits = {split: file(split, texts[n::40][:6]) for n, split in enumerate(("dev", "test"))}
    return Config(
        model=ModelConfig(path=str(tiny_bert)),
        corpus=CorpusConfig(
            sources=[SourceConfig(name, paths=some(60 * n, 60 * n + 80, name)) for n, name in enumerate("abc")],
            heldout_fraction=0.3,
        ),
        mixture=MixtureConfig(replay_paths=general),
        evaluation=EvaluationConfig(sequence_length=64, general_paths=general),
        task=TaskConfig(train=some(100, 130, "train"), domain="a", **splits),  # type: ignore[arg-type]
        tapt=TaptConfig(pool_paths=some(90, 150, "pool")),
        training=replace(Config().training, sequence_length=64, max_steps=10),
        storage=StorageConfig(root=str(folder / "runs")),
    )


def prepared_for(kind: str, stage: Stage[Any], store: Store) -> list[Path]:
    """Returns the folders of the prepared texts that are read by all stages of one kind, such as `train`."""
    found = {text.key: text for each in tree(stage) if each.kind == kind for text in each.inputs.values()}
    return [ensure(text, store).path for text in found.values() if text.kind == "prepare"]


def documents(folders: list[Path], pattern: str) -> set[tuple[int, ...]]:
    """Returns the documents of some folders as tokens.

    Texts that differ only in case and spacing have the same tokens.
    """
    streams = [TokenStream.open(folder, pattern) for folder in folders]
    return {tuple(stream.document(n).tolist()) for stream in streams for n in range(stream.documents)}


def near(one: set[tuple[int, ...]], other: set[tuple[int, ...]]) -> int:
    """Counts the pairs of similar documents. Similarity compares the token 5-grams of two documents."""
    some, others = (signatures([" ".join(map(str, each)) for each in side], 5, 256) for side in (one, other))
    return sum(int((estimated_jaccard(row, others) >= 0.8).sum()) for row in some)


Build = Callable[[Context], Stage[Any]]
JOBS: dict[str, tuple[Build, dict[str, Any]]] = {
    "general text is replayed": (dapt_stages, {}),
    "general text is replayed, near copies": (dapt_stages, {"deduplicate": "near"}),
    "general text by itself": (dapt_stages, {}),
    "domains in sequence": (sequence_stages, {}),
    "domains in sequence, near copies": (sequence_stages, {"deduplicate": "near"}),
    "a task and a pool": (tapt_stages, {}),
}


@pytest.mark.parametrize("case", JOBS)
def test_nothing_that_is_measured_is_trained_on(config: Config, tmp_path: Path, case: str) -> None:
    job, changes = JOBS[case]
    if case == "general text by itself":  # no other text uses the general text's files, so all of it is measured
        alone = write(tmp_path / "alone.jsonl", with_labels(sentences(240, 1, shortest=30, longest=60)[::5]))
        config = replace(config, evaluation=replace(config.evaluation, general_paths=alone))
    context = Context.of(replace(config, corpus=replace(config.corpus, **changes)))
    stage, store = job(context), context.store
    measured, trained = (prepared_for(kind, stage, store) for kind in ("evaluate", "train"))
    held, learnt = documents(measured, HELDOUT_GLOB), documents(trained, SHARD_GLOB)
    assert len(held) > 20
    assert len(learnt) > 100
    assert not held & learnt
    assert Measured.of(measured).count_in(trained) == 0
    if changes:
        assert near(held, learnt) == 0
