"""Provides small configurations for tests of keys.

Each file of text has one line, and the folder of a model contains only a config.json.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import (
    Config,
    CorpusConfig,
    EvaluationConfig,
    MethodConfig,
    ModelConfig,
    SourceConfig,
    StorageConfig,
    TaskConfig,
    TrainingConfig,
)
from adapt.runner import Stage

DOMAINS = ("cs", "bio", "reviews")
SPLITS = ("train", "dev", "test")


def keyed_model(folder: Path) -> Path:
    """Makes a folder with the config.json of a model, and returns the folder."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 128}))
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).write_text(name)
    return folder


def enter(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> Config:
    """Makes `folder` the working directory and writes a model and text files. Returns fields that all jobs share."""
    monkeypatch.chdir(folder)
    (folder / "data").mkdir()
    for name in names:
        line = {"text": f"text of {name}", "label": "a", "body": "b"}
        (folder / "data" / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
    return Config(
        model=ModelConfig(path=str(keyed_model(folder / "model"))), storage=StorageConfig(root=str(folder / "runs"))
    )


def dapt_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Returns a configuration with two files of one domain, and general text."""
    return replace(
        enter(folder, monkeypatch, "a", "b", "general"),
        corpus=CorpusConfig(paths=["data/a.jsonl", "data/b.jsonl"]),
        training=TrainingConfig(global_batch_size=8, sequence_length=128),
        evaluation=EvaluationConfig(sequence_length=128, general_paths="data/general.jsonl"),
    )


def task_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Returns a configuration with one task, whose examples have two text fields and a label."""
    base = enter(folder, monkeypatch, *SPLITS, "pool", "more")
    return replace(
        base,
        task=TaskConfig(name="one", **splits()),
        training=TrainingConfig(epochs=2.0, sequence_length=64),
        evaluation=EvaluationConfig(sequence_length=64),
    )


def sequence_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Returns a configuration with three domains, two of them with a task, and general text."""
    base = enter(folder, monkeypatch, *DOMAINS, "more", "general", *SPLITS)
    return replace(
        base,
        name="das",
        corpus=CorpusConfig(sources=[source(name) for name in DOMAINS]),
        method=MethodConfig("das"),
        tasks=[TaskConfig(name="cs", **splits()), TaskConfig(name="sentiment", domain="reviews", **splits())],
        training=TrainingConfig(sequence_length=64, max_steps=10),
        evaluation=EvaluationConfig(sequence_length=64, general_paths="data/general.jsonl"),
        finetune=replace(base.finetune, seeds=[0, 1]),
    )


def splits() -> dict[str, Any]:
    return {split: f"data/{split}.jsonl" for split in SPLITS}


def source(name: str) -> SourceConfig:
    return SourceConfig(name, paths=f"data/{name}.jsonl")


def changed(config: Config, name: str, value: Any) -> Config:
    """Returns the configuration with one field set to a new value. `name` is the field's dotted name."""
    *section, field = name.split(".")
    inner = replace(getattr(config, section[0]), **{field: value}) if section else value
    return replace(config, **{section[0] if section else field: inner})


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    """Returns the names of the stages whose keys differ between two jobs."""
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def tree(stage: Stage[Any], seen: set[str] | None = None) -> Iterator[Stage[Any]]:
    """Yields a stage and all stages that it depends on. Each stage occurs once, after its inputs."""
    seen = set() if seen is None else seen
    if stage.key in seen:
        return
    seen.add(stage.key)
    for needed in stage.inputs.values():
        yield from tree(needed, seen)
    yield stage
