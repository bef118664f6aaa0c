"""Tests text features, and the accuracy of labels predicted from nearest neighbours."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from adapt.config import Config, EvaluationConfig
from adapt.evaluate.knn_accuracy import knn_labels, mean_features, nearest_neighbours
from adapt.evaluate.measure_model import HITS_FILE
from adapt.evaluate.measurements import TaskNeighbours
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.task.dataset import Split

CPU = torch.device("cpu")
EVALUATION = EvaluationConfig(sequence_length=32, micro_batch=3)


def split(count: int, longest: int = 30, seed: int = 0, leaked: tuple[int, ...] = ()) -> Split:
    """Returns a split of random text pairs with alternating labels. Half of each pair's tokens are the second text."""
    draw = np.random.default_rng(seed)
    texts = [draw.integers(5, 150, draw.integers(2, longest)).astype(np.int32) for _ in range(count)]
    segments = [(np.arange(len(text)) >= len(text) // 2).astype(np.int8) for text in texts]
    labels = [number % 2 for number in range(count)]
    return Split(list(map(str, range(count))), texts, segments, labels, [n in leaked for n in range(count)])


def padded_states(folder: Path, texts: list[np.ndarray], segments: list[np.ndarray]) -> list[torch.Tensor]:
    """Computes the last hidden states of each text in a separate pass with transformers [tokens, hidden size]."""
    from transformers import BertModel

    model = BertModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        return [
            model(
                input_ids=torch.tensor(text.astype(int))[None], token_type_ids=torch.tensor(second.astype(int))[None]
            ).last_hidden_state[0]
            for text, second in zip(texts, segments, strict=True)
        ]


def test_features_are_the_means_of_transformers_states(tiny_bert: Path) -> None:
    texts = split(7)
    expected = [states.mean(0).numpy() for states in padded_states(tiny_bert, texts.tokens, texts.segments)]
    found = mean_features(load_model(tiny_bert), texts, EVALUATION, CPU)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_long_texts_pass_in_pieces(tiny_bert: Path) -> None:
    texts = split(4, longest=90)
    assert max(map(len, texts.tokens)) > 64
    expected = []
    for text, second in zip(texts.tokens, texts.segments, strict=True):
        cuts = range(32, len(text), 32)
        states = padded_states(tiny_bert, np.split(text, cuts), np.split(second, cuts))
        expected.append(torch.cat(states).mean(0).numpy())
    found = mean_features(load_model(tiny_bert), texts, EVALUATION, CPU)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("neighbours", [1, 3, 100])
def test_labels_are_those_of_the_nearest_by_cosine(neighbours: int) -> None:
    draw = np.random.default_rng(1)
    known, asked = draw.normal(size=(21, 4)), draw.normal(size=(30, 4))
    labels = draw.integers(0, 3, 21)
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (asked, known)]
    nearest = np.argsort(-(unit[0] @ unit[1].T), axis=1)[:, :neighbours]
    votes = np.array([np.bincount(labels[each], minlength=3).argmax() for each in nearest])
    np.testing.assert_array_equal(knn_labels(known, labels, asked, neighbours), votes)


def test_nothing_to_classify() -> None:
    assert not len(knn_labels(np.ones((2, 3)), np.array([0, 1]), np.ones((0, 3)), 1))


def test_leaked_texts_are_left_out_on_the_cluster(tiny_bert: Path, tmp_path: Path, ray_cluster: None) -> None:
    train = split(12)
    train.save(tmp_path, "train")
    test = Split(train.ids[:4], train.tokens[:4], train.segments[:4], [0, 1, 1, 0], [False, False, True, True])
    test.save(tmp_path, "test")
    config = Config(evaluation=EVALUATION)
    one = Config(evaluation=EVALUATION, comparison=type(config.comparison)(neighbours=1))
    found = nearest_neighbours(one, Pretrained(tiny_bert, tiny_bert), {"toy": tmp_path}, tmp_path)
    # The nearest neighbour of each text is its copy in train. Texts 0 and 1 have the same labels there. Texts 2 and 3
    # have other labels, but are left out because they are marked as leaked.
    assert found == {"toy": TaskNeighbours(accuracy=1.0, examples=2, left_out=2)}
    assert json.loads((tmp_path / HITS_FILE).read_text()) == {"toy": [1, 1]}
