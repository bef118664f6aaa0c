"""Tokenizers are compared by what they do, not by their files."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertConfig, GPT2Config, LlamaConfig, RobertaConfig, XLMRobertaConfig

from adapt.model.alike import are_alike
from adapt.model.locate import Pretrained
from tests import tokenizers
from tests.model.checkpoints import exchange_tokens

SPECIAL = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>", "cls": "<s>", "sep": "</s>"}


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


@pytest.mark.parametrize(
    ("tokenizer", "config"),
    [
        (tokenizers.wordpiece(), BertConfig),
        (tokenizers.byte_level(), GPT2Config),
        (tokenizers.roberta(), RobertaConfig),
        (tokenizers.unigram(), XLMRobertaConfig),
        (tokenizers.wordless(), LlamaConfig),
    ],
)
def test_published_ones_are_those_that_transformers_writes(tokenizer: Tokenizer, config: type, tmp_path: Path) -> None:
    """Model hubs have few settings, and files of older versions."""
    published, written = tmp_path / "published", tmp_path / "written"
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "pad_token_id": tokenizer.token_to_id("<pad>")}
    for folder in (published, written):
        config(**sizes).save_pretrained(folder)
    tokenizer.save(str(published / "tokenizer.json"), pretty=False)
    settings = {f"{name}_token": token for name, token in SPECIAL.items()}
    (published / "tokenizer_config.json").write_text(json.dumps(settings))
    AutoTokenizer.from_pretrained(published).save_pretrained(written)
    files = [(folder / "tokenizer.json").read_bytes() for folder in (published, written)]
    assert files[0] != files[1]
    assert alike(published, written)


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
