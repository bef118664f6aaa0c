"""Tokenizers are compared by what they do, not by their files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from adapt.model.alike import are_alike
from adapt.model.locate import Pretrained


def copied(folder: Path, to: Path, change: Callable[[dict[str, Any]], None]) -> Pretrained:
    """A copy whose tokenizer.json is changed."""
    file = shutil.copytree(folder, to) / "tokenizer.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return Pretrained(to, to)


def test_one_that_transformers_wrote_again_is_the_same(tmp_path: Path, tiny_bert: Path) -> None:
    again = shutil.copytree(tiny_bert, tmp_path / "again")
    (again / "tokenizer_config.json").unlink()
    AutoTokenizer.from_pretrained(tiny_bert, model_max_length=64).save_pretrained(again)
    assert (again / "tokenizer_config.json").read_bytes() != (tiny_bert / "tokenizer_config.json").read_bytes()
    assert are_alike(Pretrained(tiny_bert, tiny_bert), Pretrained(again, again))


def exchange(content: dict[str, Any]) -> None:
    """Two tokens have each other's ids."""
    vocabulary = content["model"]["vocab"]
    vocabulary["model"], vocabulary["loss"] = vocabulary["loss"], vocabulary["model"]


def cut(content: dict[str, Any]) -> None:
    """A length at which a text is cut, which we switch off."""
    content["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize(("change", "alike"), [(exchange, False), (cut, True)])
def test_ids_count_and_lengths_do_not(
    tmp_path: Path, tiny_bert: Path, change: Callable[[dict[str, Any]], None], alike: bool
) -> None:
    assert are_alike(Pretrained(tiny_bert, tiny_bert), copied(tiny_bert, tmp_path / "other", change)) is alike
