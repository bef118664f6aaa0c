"""Models of another architecture or vocabulary are refused from their settings alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from adapt.errors import ModelError
from adapt.merge.alike import check_architectures, check_vocabularies
from adapt.model.locate import Pretrained


def changed(folder: Path, base: Path, **settings: Any) -> Path:
    shutil.copytree(base, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    return folder


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("model_type", "roberta", "model_type is roberta in its config.json, and bert"),
        ("vocab_size", 77, "vocabulary size is 77"),
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


def test_another_vocabulary_is_named_and_another_chat_template_is_none(tmp_path: Path, tiny_bert: Path) -> None:
    base = Pretrained(tiny_bert, tiny_bert)
    for place, (old, new) in enumerate({"cell": "call", "content": "content"}.items()):
        folder = Path(shutil.copytree(tiny_bert, tmp_path / str(place)))
        (folder / "chat_template.jinja").write_text("{{ messages }}")
        file = folder / "tokenizer.json"
        content = json.loads(file.read_text())
        words = content["model"]["vocab"]
        word = next(word for word in words if word.isalpha())
        if old != new:
            content["model"]["vocab"] = {("zzz" if each == word else each): number for each, number in words.items()}
            file.write_text(json.dumps(content))
            with pytest.raises(ModelError, match="2 tokens differ") as caught:
                check_vocabularies(base, Pretrained(folder, folder))
            assert f"'{min(word, 'zzz')}'" in str(caught.value)
            file.unlink()  # then transformers reads it, or says why not
            with pytest.raises(ModelError):
                check_vocabularies(base, Pretrained(folder, folder))
        else:
            check_vocabularies(base, Pretrained(folder, folder))


def test_a_broken_tokenizer_is_named(tmp_path: Path, tiny_bert: Path) -> None:
    folder = Path(shutil.copytree(tiny_bert, tmp_path / "other"))
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        check_vocabularies(Pretrained(tiny_bert, tiny_bert), Pretrained(folder, folder))
