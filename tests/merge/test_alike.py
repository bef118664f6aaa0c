"""Models of another architecture are refused from their settings alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from adapt.errors import ModelError
from adapt.merge.alike import check_architectures


def changed(folder: Path, base: Path, **settings: Any) -> Path:
    shutil.copytree(base, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    return folder


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("model_type", "roberta", "model_type is roberta in its config.json, and bert"),
        ("hidden_size", 64, "hidden is 64"),
        ("num_hidden_layers", 3, "layers is 3"),
        ("num_attention_heads", 4, "heads is 4"),
        ("hidden_act", "relu", "activation is relu"),
    ],
)
def test_another_architecture_is_named(tmp_path: Path, tiny_bert: Path, setting: str, value: Any, said: str) -> None:
    other = changed(tmp_path / "other", tiny_bert, **{setting: value})
    with pytest.raises(ModelError) as caught:
        check_architectures(tiny_bert, other)
    assert all(words in str(caught.value) for words in (said, str(other), str(tiny_bert)))


def test_what_does_not_decide_may_differ(tmp_path: Path, tiny_bert: Path) -> None:
    other = changed(
        tmp_path / "other", tiny_bert, dtype="bfloat16", attention_probs_dropout_prob=0.3, transformers_version="5.0"
    )
    check_architectures(tiny_bert, other)
