"""Tests that jobs and plans raise errors of later stages before they read the corpus."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    ConvBertForMaskedLM,
    DebertaV2Config,
    DebertaV2Model,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    EsmForMaskedLM,
    FunnelForMaskedLM,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
)

from adapt.config import Config, ModelConfig, ResourcesConfig, TrainingConfig
from adapt.job.training_jobs import dapt_stages
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.start import Start
from adapt.parse import parse
from adapt.runner.ensure import check_ahead, unfinished
from adapt.stage import preflight
from adapt.stage.context import Context
from adapt.stage.preflight import check_model, check_precision
from adapt.support.errors import ConfigError, ModelError, StorageError
from tests.jobs.commands import Run, check_refused, replaced
from tests.model.families import FAMILIES, plain

FP16 = "--training.precision=fp16"


BERT_SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
ROW_SIZES: dict[str, dict[str, Any]] = {
    "EsmForMaskedLM": BERT_SIZES,
    "ConvBertForMaskedLM": BERT_SIZES,
    "FunnelForMaskedLM": {"block_sizes": [2, 2, 2], "n_head": 2, "d_head": 16, "d_inner": 64},
}


def other_model(kind: Any, tiny_bert: Path, folder: Path) -> Path:
    """Writes a random model whose architecture does not accept packed documents, with the tokenizer of `tiny_bert`."""
    words = len(json.loads((tiny_bert / "tokenizer.json").read_text())["model"]["vocab"])
    torch.manual_seed(0)
    config = kind.config_class(vocab_size=words, hidden_size=32, **ROW_SIZES[kind.__name__])
    config.update({"max_position_embeddings": 130, "pad_token_id": 0, "mask_token_id": 4})
    kind(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_bert / name, folder)
    return folder


@pytest.fixture
def funnel(tmp_path: Path, tiny_bert: Path) -> Path:
    """Returns the folder of a model that fails on texts of fewer than five tokens."""
    return other_model(FunnelForMaskedLM, tiny_bert, tmp_path / "funnel")


@pytest.mark.heavy
def test_fp16_without_a_gpu_is_refused(
    forked: Run, job: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check_refused(forked("dapt.py", *job, FP16), 2, "training.precision fp16 is for GPUs, and this run has none")
    assert not list((tmp_path / "runs").glob("*/*/stage.json"))
    ran = forked("chain.py", "plan", *job, FP16)
    assert (ran.code, ran.out) == (2, "")
    assert "ConfigError: training.precision fp16 is for GPUs" in ran.err


@pytest.mark.slow
def test_an_architecture_that_cannot_train_is_refused(
    forked: Run, job: list[str], funnel: Path, tmp_path: Path
) -> None:
    for command in (["dapt.py"], ["chain.py", "plan"]):
        ran = forked(*command, *replaced(job, f"--model.path={funnel}"))
        assert (ran.code, ran.out) == (4, "")
        assert "ModelError: FunnelForMaskedLM cannot compute texts of 3, 5, 70 tokens" in ran.err
        assert "ray" not in ran.loaded
        assert not list((tmp_path / "runs").glob("*/*/stage.json"))


def test_checking_an_architecture_reads_no_weights(funnel: Path) -> None:
    for causal in (False, None):
        with pytest.raises(ModelError, match="FunnelForMaskedLM cannot compute texts of 3, 5, 70 tokens alone"):
            check_model(Start(Pretrained(funnel, funnel), None), causal)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (EsmForMaskedLM, "esm models take no packed documents: documents cannot share a sequence"),
        (ConvBertForMaskedLM, "convbert models take no packed documents: padding would change the model's outputs"),
    ],
)
def test_rows_are_announced(
    kind: Any, said: str, tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = other_model(kind, tiny_bert, tmp_path / "other")
    capsys.readouterr()
    check_model(Start(Pretrained(folder, folder), None), False)
    assert said in capsys.readouterr().err


def test_too_little_disk_space_for_all_outputs_is_refused(
    job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_bert: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = 4 * sum(each.numel() for each in preflight_weights(tiny_bert))
    for schedule, times in (("linear", 11), ("wsd", 14)):
        context = Context.of(parse([*job, "--training.keep_checkpoints=2", f"--training.schedule={schedule}"], "x"))
        waiting, _ = unfinished([dapt_stages(context)], context.store)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, times=times: SimpleNamespace(free=times * weights))
        check_ahead(waiting, context.store)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, times=times: SimpleNamespace(free=times * weights - 1))
        with pytest.raises(StorageError, match=r"checkpoints and models will take .* GB") as caught:
            check_ahead(waiting, context.store)
        assert "training.keep_checkpoints" in caught.value.fix
        assert not context.store.root.joinpath("train").exists()


def preflight_weights(folder: Path) -> list[torch.Tensor]:
    from safetensors.torch import load_file

    return list(load_file(folder / "model.safetensors").values())


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (BertModel, BertConfig),
        (RobertaModel, RobertaConfig),
        (ElectraModel, ElectraConfig),
        (DistilBertModel, DistilBertConfig),
        (ModernBertModel, ModernBertConfig),
        (MPNetModel, MPNetConfig),
        (DebertaV2Model, DebertaV2Config),
        (AlbertModel, AlbertConfig),
    ],
)
def test_an_encoder_without_its_head_is_refused(kind: Any, config: Any, tmp_path: Path) -> None:
    sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16} if kind is DistilBertModel else SIZES
    kind(config(**sizes, vocab_size=60_000 if kind is ModernBertModel else 50)).save_pretrained(tmp_path)
    for causal in (False, None):
        with pytest.raises(ModelError, match="lacks weights of its language model") as caught:
            check_model(Start(Pretrained(tmp_path, tmp_path), None), causal)
        with pytest.raises(ModelError) as loaded:
            load_model(tmp_path)
        assert caught.value.fix == loaded.value.fix


@pytest.mark.parametrize("family", FAMILIES)
def test_complete_models_are_accepted(family: str, tmp_path: Path) -> None:
    plain(family).save_pretrained(tmp_path)
    check_model(Start(Pretrained(tmp_path, tmp_path), None), family in ("gpt2", "llama"))
    check_model(Start(Pretrained(tmp_path, tmp_path), None), None)


SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def asks(precision: str, **resources: object) -> Config:
    return Config(
        model=ModelConfig(),
        training=TrainingConfig(precision=precision),  # type: ignore[arg-type]
        resources=ResourcesConfig(**resources),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("has_bf16", [True, False])
@pytest.mark.parametrize("has_gpu", [True, False])
def test_precision_is_checked_where_the_devices_are_known(
    has_gpu: bool, has_bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(preflight, "has_gpu", lambda: has_gpu)
    monkeypatch.setattr(preflight, "cpu_has_bf16", lambda: has_bf16)
    refused = {
        (precision, name)
        for precision in ("auto", "fp32", "bf16", "fp16")
        for name, resources in {
            "here": {},
            "here, without": {"gpus_per_worker": 0},
            "here, with": {"gpus_per_worker": 1},
            "cluster": {"address": "a:1"},
            "cluster, without": {"address": "a:1", "gpus_per_worker": 0},
        }.items()
        if is_refused(asks(precision, **resources))
    }
    expected = {("fp16", "here, without"), ("fp16", "cluster, without")}
    expected |= set() if has_gpu else {("fp16", "here")}
    if not has_bf16:
        expected |= {("bf16", "here, without")} | (set() if has_gpu else {("bf16", "here")})
    assert refused == expected


def is_refused(config: Config) -> bool:
    try:
        check_precision(config)
    except ConfigError:
        return True
    return False
