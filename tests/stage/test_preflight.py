"""Tests of the checks that run before a job starts anything."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file
from transformers import ElectraForMaskedLM

from adapt.config import Config, ObjectiveConfig, ResourcesConfig, StorageConfig, TrainingConfig
from adapt.model.locate import Pretrained
from adapt.objective.table import RtdOptions
from adapt.stage import preflight
from adapt.stage.preflight import (
    check_compile,
    check_generator,
    check_memory,
    check_shared,
    check_space,
    check_training,
    check_weights,
    check_writable,
)
from adapt.support.errors import ConfigError, ModelError, StorageError
from tests.model.checkpoints import exchange_tokens
from tests.model.test_detector import written


@pytest.fixture
def model(tmp_path: Path, tiny_bert: Path) -> Path:
    """Returns a copy of the tiny model, which a test may damage."""
    return Path(shutil.copytree(tiny_bert, tmp_path / "model"))


@pytest.mark.parametrize("keep", [0, 4, 8, 200, -100, -1])
def test_truncated_weights_are_refused(model: Path, keep: int) -> None:
    check_weights(model)
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=f"{file} cannot be read"):
        check_weights(model)


@pytest.mark.parametrize(
    "content", [b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", b"\2" + b"\0" * 7 + b"[]", b"\0" * 99]
)
def test_weights_in_another_format_are_refused(model: Path, content: bytes) -> None:
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="not a safetensors file"):
        check_weights(model)


def test_a_truncated_shard_is_refused(model: Path) -> None:
    whole = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict(zip("ab", names, strict=True))}))
    for name in names:
        (model / name).write_bytes(whole)
    check_weights(model)
    (model / names[1]).write_bytes(whole[:-1])
    with pytest.raises(ModelError, match=names[1]):
        check_weights(model)


@pytest.mark.parametrize("root", ["gs://bucket/runs", "s3://", "", "  "])
def test_results_need_a_folder_or_an_s3_bucket(root: str) -> None:
    with pytest.raises(ConfigError, match=r"storage\.root"):
        check_shared(Config(storage=StorageConfig(root=root)))


def test_the_local_copy_of_a_bucket_has_an_absolute_path_on_a_cluster() -> None:
    resources = ResourcesConfig(address="127.0.0.1:6379")
    check_shared(Config(storage=StorageConfig(root="s3://bucket/runs"), resources=resources))
    with pytest.raises(ConfigError, match=r"storage\.cache") as refused:
        check_shared(Config(storage=StorageConfig(root="s3://bucket/runs", cache="here"), resources=resources))
    assert "a disk of each node" in refused.value.fix


def test_two_jobs_may_start_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            list(pool.map(check_writable, [tmp_path] * 100))


def test_the_disk_must_have_room_for_the_model_and_its_checkpoints(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training needs free space of 11 times the size of the weights.

    Three checkpoints (two complete and one being written) each take three times the size of the weights. The model and
    a copy of it take the rest.
    """
    weights = 4 * sum(tensor.numel() for tensor in load_file(model / "model.safetensors").values())
    folder = tmp_path / "train"
    folder.mkdir()
    free = 11 * weights
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    check_space(folder, model, 2)
    free -= 1
    with pytest.raises(StorageError, match="GB free, but the checkpoints and the model need") as caught:
        check_space(folder, model, 2)
    assert str(folder) in caught.value.what
    check_space(folder, model, 1)
    (folder / "checkpoint").write_bytes(b"1")  # files of an earlier start count as free space
    check_space(folder, model, 2)


@pytest.mark.parametrize(("offload", "stages"), [("none", {0, 1, 2, 3}), ("optimizer", {2, 3}), ("all", {3})])
@pytest.mark.parametrize("zero_stage", range(4))
def test_offloading_requires_a_matching_zero_stage(offload: str, stages: set[int], zero_stage: int) -> None:
    config = Config(resources=ResourcesConfig(offload=offload, zero_stage=zero_stage))
    if zero_stage in stages:
        check_training(config)
        return
    with pytest.raises(
        ConfigError, match=f"offload {offload} does not work with resources.zero_stage {zero_stage}"
    ) as e:
        check_training(config)
    assert f"use resources.zero_stage {' or '.join(map(str, sorted(stages)))}" in e.value.fix


@pytest.mark.parametrize(
    ("limits", "longest"),
    [({"max_steps": 100}, 100), ({"max_tokens": 100 * 2048 * 512}, 100), ({}, 12_500), ({"epochs": 1.0}, 10**9)],
)
def test_a_warm_up_longer_than_the_run_is_refused(limits: dict[str, float], longest: int) -> None:
    """The length of a run is unknown here if only epochs are set.

    The warm-up is then checked after the corpus is prepared.
    """
    check_training(Config(training=TrainingConfig(warmup_steps=longest, **limits)))
    if "epochs" in limits:
        return
    with pytest.raises(ConfigError, match="is longer than the run"):
        check_training(Config(training=TrainingConfig(warmup_steps=longest + 1, **limits)))


def test_a_training_that_does_not_fit_in_memory_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def job(**resources: float) -> Config:
        return Config(training=TrainingConfig(sequence_length=128), resources=ResourcesConfig(**resources))

    check_memory(job(device_memory_gib=4.0), model)
    with pytest.raises(ConfigError, match=r"the training does not fit: .* its device has 0\.1 GiB"):
        check_memory(job(device_memory_gib=0.1), model, {"train_documents": 10, "train_tokens": 100})
    assert capsys.readouterr().err == ""
    config = json.loads((model / "config.json").read_text())
    del config["hidden_size"]
    (model / "config.json").write_text(json.dumps(config))
    check_memory(job(device_memory_gib=0.1), model)
    assert "memory is not checked" in capsys.readouterr().err


def test_compiling_requires_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(training=TrainingConfig(compile=True))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(preflight, "has_gpu", lambda: False)
    with pytest.raises(ConfigError, match="looked for no-such-compiler"):
        check_compile(config)
    check_compile(Config())
    # on a remote cluster, the workers check for a compiler
    check_compile(replace(config, resources=ResourcesConfig(address="10.0.0.1:6379")))


def test_a_decay_without_a_cooldown_is_refused() -> None:
    check_training(Config(training=TrainingConfig(schedule="wsd", decay="cosine")))
    with pytest.raises(ConfigError, match=r"training\.decay cosine is for the schedule wsd"):
        check_training(Config(training=TrainingConfig(decay="cosine")))


def test_a_generator_must_predict_the_words_of_the_models_vocabulary(tmp_path: Path, tiny_bert: Path) -> None:
    folder = written(tmp_path / "model", tiny_bert)
    generator, other, wide, headless = (
        written(tmp_path / "generator", tiny_bert, ElectraForMaskedLM),
        written(tmp_path / "other", tiny_bert, ElectraForMaskedLM),
        written(tmp_path / "wide", tiny_bert, ElectraForMaskedLM, embedding_size=12),
        folder,
    )
    exchange_tokens(other)

    def check(place: Path | None, **options: object) -> None:
        config = Config(objective=ObjectiveConfig(kind="rtd"), objective_options=RtdOptions(**options))  # type: ignore[arg-type]
        check_generator(config, Pretrained(folder, folder, generator=place))

    check(generator)
    check(wide, embeddings="separate")
    for place, options, said in (
        (other, {}, "another vocabulary than .* 2 tokens differ"),
        (headless, {}, "lacks weights of its language model"),
        (wide, {}, "word_embeddings of shape"),
        (generator, {"embeddings": "shared"}, None),
        (wide, {"embeddings": "shared"}, "word_embeddings"),
    ):
        if said is None:
            check(place, **options)
            continue
        with pytest.raises(ModelError, match=said):
            check(place, **options)
    with pytest.raises(ConfigError, match="the model has 3 layers"):
        check(None, generator_layers=4)
