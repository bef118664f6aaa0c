"""Tests the longest sequence of a model, and the warning about instruct models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from adapt.model.architecture import check_sequence_length, is_instruct, max_sequence_length, warn_of_instruct
from adapt.model.locate import Pretrained
from adapt.model.packing.isolation import keep_documents_apart
from adapt.model.packing.packed import Packed
from adapt.model.sparse_prediction import losses_at
from adapt.support.errors import ConfigError
from tests.model.families import BERT

FIRST, SIZES = 8, {**BERT, "vocab_size": 50, "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0}
LONG = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [4.0]}


def folder(path: Path, **config: Any) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({}, None),
        ({"max_position_embeddings": 64}, 64),
        ({"n_positions": 32}, 32),
        ({"max_position_embeddings": 64, "model_type": "roberta"}, 62),
        ({"max_position_embeddings": 64, "rope_scaling": LONG, "original_max_position_embeddings": 8}, 8),
        ({"max_position_embeddings": 64, "rope_parameters": LONG | {"original_max_position_embeddings": 8}}, 8),
        ({"max_position_embeddings": 64, "rope_scaling": {"type": "linear", "factor": 2.0}}, 64),
        ({"max_position_embeddings": 64, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, 64),
        ({"max_position_embeddings": 64, "rope_parameters": {"rope_type": "dynamic"}}, 64),
        ({"rope_parameters": {"full_attention": LONG | {"original_max_position_embeddings": 8}, "other": None}}, 8),
        (
            {
                "max_position_embeddings": 64,
                "rope_parameters": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8},
            },
            64,  # YaRN applies the same scale at all lengths
        ),
    ],
)
def test_the_longest_sequence_is_read_from_the_config(
    config: dict[str, Any], longest: int | None, tmp_path: Path
) -> None:
    assert max_sequence_length(folder(tmp_path, **config)) == longest


def test_longer_sequences_are_refused_with_a_reason(tmp_path: Path) -> None:
    scaled = folder(tmp_path, max_position_embeddings=64, rope_scaling=LONG, original_max_position_embeddings=FIRST)
    check_sequence_length(scaled, FIRST, "training.sequence_length")
    with pytest.raises(
        ConfigError, match="is 9, but the model takes 8 tokens, because with LongRoPE a longer"
    ) as caught:
        check_sequence_length(scaled, 9, "training.sequence_length")
    assert caught.value.fix == "set training.sequence_length to 8 or less"
    with pytest.raises(ConfigError) as caught:
        check_sequence_length(folder(tmp_path, max_position_embeddings=64), 65, "evaluation.sequence_length")
    assert caught.value.what == "evaluation.sequence_length is 65, but the model takes 64 tokens"


LONGEST = 80
"""Length up to which positions are not scaled [tokens]. It is longer than all documents of `keep_documents_apart`."""


def phi() -> Any:
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    sizes = {**SIZES, "max_position_embeddings": 640, "original_max_position_embeddings": LONGEST}
    return Phi3ForCausalLM(Phi3Config(**sizes, rope_parameters={**LONG, **factors, "rope_theta": 10_000.0}))


def llama() -> Any:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, "max_position_embeddings": LONGEST}, rope_parameters=rope))


@torch.no_grad()
def change(model: Any, other: int) -> float:
    """Returns the largest change of a 5-token document's losses when it is packed with a document of `other` tokens."""
    tokens = torch.randint(5, 50, (5 + other,), generator=torch.Generator().manual_seed(0))

    def losses(ends: list[int]) -> torch.Tensor:
        seen, starts = tokens[: ends[-1]], torch.zeros(ends[-1], dtype=torch.bool)
        starts[[0, *ends[:-1]]] = True
        everywhere = torch.ones_like(starts)
        packed = Packed.of(seen[None], everywhere[None], starts[None])
        return losses_at(model, packed, torch.arange(len(seen)), seen)[:5]

    return float((losses([5, 5 + other]) - losses([5])).abs().max())


@pytest.mark.parametrize("make", [phi, llama])
def test_documents_up_to_the_longest_sequence_do_not_change_each_other(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make()
    for parameter in model.parameters():
        parameter.data.mul_(5)
    keep_documents_apart(model.eval())
    model.save_pretrained(tmp_path)
    assert max_sequence_length(tmp_path) == LONGEST
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    keep_documents_apart(model.eval())
    assert change(model, LONGEST) < 1e-5
    assert change(model, LONGEST + 1) > 1e-4


@pytest.mark.parametrize("file", ["chat_template.jinja", "chat_template.json"])
def test_a_chat_template_in_a_file_or_in_the_settings_is_recognized(tmp_path: Path, file: str) -> None:
    assert not is_instruct(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({"chat_template": None}))
    assert not is_instruct(tmp_path)
    (tmp_path / file).write_text("{}")
    assert is_instruct(tmp_path)
    (tmp_path / file).unlink()
    settings.write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert is_instruct(tmp_path)


def test_the_warning_is_logged_once_and_gives_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_instruct(Pretrained(tmp_path, tmp_path))
    assert capsys.readouterr().err == ""
    instruct = tmp_path / "instruct"
    instruct.mkdir()
    (instruct / "chat_template.jinja").write_text("{{ messages }}")
    for _ in range(2):
        warn_of_instruct(Pretrained(tmp_path / "model", instruct))
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1
    assert "merge.kind: residual" in said
