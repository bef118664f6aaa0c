"""Tests smooth inverse frequency (SIF) vectors against sums over the model's embedding table."""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, BertModel

from adapt.embed import transformer
from adapt.support.errors import DataError
from tests.embed.toys import loaded, topical, votes
from tests.samples import sentences

SMOOTHING = 1e-3


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)


def expected_vectors(model: Path, sample: list[str], texts: list[str]) -> tuple[np.ndarray, list[list[int]]]:
    """Returns the expected vectors, computed one window at a time, and the token ids of each text."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    table = BertModel.from_pretrained(model).get_input_embeddings().weight.detach().numpy().astype(float)

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    def windows(text: str) -> np.ndarray:
        known = np.array(ids(text), int)
        count = max(1, -(-len(known) // transformer.WINDOW))
        parts = np.split(known, [place * len(known) // count for place in range(1, count)])
        return unit(np.array([(weights[part][:, None] * table[part]).sum(0) for part in parts]))

    counts = np.bincount([token for text in sample for token in ids(text)], minlength=len(table))
    weights = SMOOTHING / (SMOOTHING + counts / counts.sum())
    component = np.linalg.svd(np.concatenate([windows(text) for text in sample]), full_matrices=False)[2][0]
    vectors = [(rows - np.outer(rows @ component, component)).mean(0) for rows in map(windows, texts)]
    return np.array(vectors), [ids(text) for text in texts]


@pytest.mark.parametrize("at_once", [1, 4, 1000])
def test_vectors_are_sif_means_of_windows_of_the_texts_own_tokens(
    tiny_bert: Path, tmp_path: Path, at_once: int
) -> None:
    sample = sentences(40)
    texts = [*sentences(9), "ξ ∂ model", "", " ".join(sentences(7))]
    expected, ids = expected_vectors(tiny_bert, sample, texts)
    assert len(ids[-1]) > transformer.WINDOW
    found = loaded("static", tmp_path, tiny_bert, sample, texts_at_once=at_once).embed(texts)
    np.testing.assert_allclose(found.vectors, expected, atol=1e-6)
    unknown = sum(each.count(AutoTokenizer.from_pretrained(tiny_bert).unk_token_id) for each in ids)
    assert (found.seen, found.unknown) == (sum(map(len, ids)), unknown)
    assert unknown == 2


def test_what_most_texts_have_in_common_is_removed(tiny_bert: Path, tmp_path: Path) -> None:
    texts, labels = topical(200, length=8)
    common = "a model of the text that was " * 3
    texts = [f"{common}{text}" if number % 2 else text for number, text in enumerate(texts)]
    embedder = loaded("static", tmp_path, tiny_bert, texts)
    assert votes(embedder.embed(texts).vectors, labels) > 0.9
    # with so large a smoothing, all tokens have the same weight
    without = loaded("static", tmp_path, tiny_bert, texts, smoothing=1e6)
    assert votes(without.embed(texts).vectors, labels) < votes(embedder.embed(texts).vectors, labels)


def test_a_long_text_is_as_near_to_a_short_one_as_its_windows_are(tiny_bert: Path, tmp_path: Path) -> None:
    sample = sentences(40)
    embedder = loaded("static", tmp_path, tiny_bert, sample)
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    window = tokenizer.decode(tokenizer(" ".join(sample), add_special_tokens=False)["input_ids"][: transformer.WINDOW])
    short, long = embedder.embed([window, " ".join([window] * 8)]).vectors
    np.testing.assert_allclose(short, long, atol=1e-6)


@pytest.mark.parametrize("sample", [["the model"], ["the model"] * 5])
def test_the_vector_of_a_single_text_is_not_removed(tiny_bert: Path, tmp_path: Path, sample: list[str]) -> None:
    (vector,) = loaded("static", tmp_path, tiny_bert, sample).embed(["the model"]).vectors
    assert np.linalg.norm(vector) == pytest.approx(1)


def test_texts_without_a_token_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of 2 texts has a token"):
        loaded("static", tmp_path, tiny_bert, ["", " "])
