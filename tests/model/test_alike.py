"""Tokenizers are compared by what they do, not by their files."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from adapt.model.alike import are_alike
from adapt.model.locate import Pretrained
from tests.model.checkpoints import exchange_tokens


@pytest.fixture
def other(tmp_path: Path, tiny_bert: Path) -> Path:
    """A copy of the model."""
    return shutil.copytree(tiny_bert, tmp_path / "other")


def alike(one: Path, other: Path) -> bool:
    return are_alike(Pretrained(one, one), Pretrained(other, other))


def test_one_that_transformers_wrote_again_is_the_same(tiny_bert: Path, other: Path) -> None:
    AutoTokenizer.from_pretrained(tiny_bert, model_max_length=64).save_pretrained(other)
    assert (other / "tokenizer_config.json").read_bytes() != (tiny_bert / "tokenizer_config.json").read_bytes()
    assert alike(tiny_bert, other)


def test_one_that_cuts_texts_is_the_same_since_we_do_not_let_it(tiny_bert: Path, other: Path) -> None:
    file = other / "tokenizer.json"
    cut = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps({**json.loads(file.read_text()), "truncation": cut}))
    assert alike(tiny_bert, other)


def test_two_ids_exchanged_make_another(tiny_bert: Path, other: Path) -> None:
    exchange_tokens(other)
    assert not alike(tiny_bert, other)


def test_another_special_token_makes_another(tiny_bert: Path, other: Path) -> None:
    AutoTokenizer.from_pretrained(tiny_bert, mask_token="[UNK]").save_pretrained(other)
    assert not alike(tiny_bert, other)
