"""Compares an embedder's pooled hidden states with those that `transformers` gives for one text at a time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel

from adapt.support.errors import ConfigError, ModelError
from tests.embed.toys import loaded
from tests.samples import sentences

TEXTS = sentences(8, shortest=3, longest=40)


def states(folder: Path, texts: list[str], layer: int) -> list[np.ndarray]:
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        return [
            model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[layer][0].numpy()
            for text in texts
        ]


@pytest.mark.parametrize(("layer", "pooling"), [(-1, "mean"), (0, "mean"), (1, "first"), (2, "mean"), (-1, "first")])
def test_vectors_are_those_of_transformers(tiny_bert: Path, tmp_path: Path, layer: int, pooling: str) -> None:
    each = states(tiny_bert, TEXTS, layer)
    expected = [one.mean(0) if pooling == "mean" else one[0] for one in each]
    found = loaded("transformer", tmp_path, tiny_bert, layer=layer, pooling=pooling, sequence_length=128).embed(TEXTS)
    np.testing.assert_allclose(found.vectors, expected, atol=2e-5)


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_vectors_are_the_same_for_any_batch_and_order(tiny_bert: Path, tmp_path: Path, at_once: int) -> None:
    embedder = loaded("transformer", tmp_path, tiny_bert, texts_at_once=at_once, sequence_length=20)
    whole = embedder.embed(TEXTS).vectors
    np.testing.assert_allclose(embedder.embed(TEXTS[::-1]).vectors[::-1], whole, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([embedder.embed([text]).vectors for text in TEXTS]), whole, atol=1e-5)


def test_a_long_text_has_the_mean_over_all_its_pieces(tiny_bert: Path, tmp_path: Path) -> None:
    """A piece is at most as long as the model's longest input, which is 128 tokens here."""
    (text,) = sentences(1, shortest=300, longest=300)
    tokenizer, model = AutoTokenizer.from_pretrained(tiny_bert), BertModel.from_pretrained(tiny_bert).eval()
    ids = torch.tensor(tokenizer(text)["input_ids"])
    assert len(ids) > 256
    with torch.inference_mode():
        expected = torch.cat([model(input_ids=part[None]).last_hidden_state[0] for part in ids.split(128)]).mean(0)
    found = loaded("transformer", tmp_path, tiny_bert, sequence_length=512).embed([text]).vectors[0]
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_missing_layer_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="layer of the embedder transformer is 3, but the model has 2 layers"):
        loaded("transformer", tmp_path, tiny_bert, layer=3)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        loaded("transformer", tmp_path, tmp_path)


def test_by_default_a_long_text_is_similar_to_the_sentences_it_repeats(tiny_bert: Path, tmp_path: Path) -> None:
    """A long text is split into pieces of 32 tokens, about the length of a sentence."""
    embedder = loaded("transformer", tmp_path, tiny_bert)
    assert embedder._length == 32
    assert loaded("transformer", tmp_path, tiny_bert, pooling="first")._length == 128  # the model's limit
