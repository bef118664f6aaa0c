"""Tests the embedder for distilled static embeddings on a folder that model2vec writes. Nothing is downloaded."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapt.config import Config, ModelConfig
from adapt.embed import transformer
from adapt.stage.context import Context
from adapt.stage.document_vectors import Embedding
from adapt.support.errors import ConfigError, ModelError
from tests.embed.toys import loaded

WORDS = ["[PAD]", "[UNK]", "ship", "harbour", "court", "judge", "the"]
TABLE = np.random.default_rng(0).normal(size=(len(WORDS), 4)).astype(np.float32)
WEIGHTS = np.linspace(0.5, 1.5, len(WORDS)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from model2vec import StaticModel
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    made = StaticModel(TABLE, tokenizer, {"model_type": "model2vec"}, normalize=True, weights=WEIGHTS, max_length=2)
    made.save_pretrained(tmp_path / "static")
    return tmp_path / "static"


def test_vectors_are_means_of_the_weighed_embeddings_of_all_known_tokens(folder: Path, tmp_path: Path) -> None:
    texts = ["ship the harbour court court", "xylophone judge", "xylophone", ""]
    ids = [[2, 6, 3, 4, 4], [5], [], []]
    expected = [(TABLE * WEIGHTS[:, None])[each].mean(0) if each else np.zeros(4) for each in ids]
    found = loaded("static", tmp_path, folder).embed(texts)
    np.testing.assert_allclose(found.vectors, expected, atol=1e-6)
    assert (found.seen, found.unknown) == (8, 2)


def test_model2vec_folders_are_recognised_by_their_tensor(folder: Path, tiny_bert: Path, tmp_path: Path) -> None:
    assert transformer.is_distilled(folder)
    assert not transformer.is_distilled(tiny_bert)
    assert not transformer.is_distilled(tmp_path)


def without_package(name: str, find: Any = importlib.util.find_spec) -> Any:
    return None if name == transformer.PACKAGE else find(name)


def test_without_the_package_it_is_refused_before_anything_is_computed(
    folder: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformer.importlib.util, "find_spec", without_package)
    config = Config(
        model=ModelConfig(path=str(tiny_bert)),
        training=replace(Config().training, sequence_length=64),
        evaluation=replace(Config().evaluation, sequence_length=64),
    )
    context = Context.of(config)
    Embedding.of(context, "static", {})
    with pytest.raises(ConfigError, match="the package model2vec is not installed") as caught:
        Embedding.of(context, "static", {"path": str(folder)})
    assert "pip install 'dontstop[model2vec]'" in caught.value.fix


def test_a_folder_that_is_broken_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="static cannot be read by model2vec"):
        loaded("static", tmp_path, folder)
