"""Tests nearest neighbours, and probes on a model in training: their features and scores, on all ranks."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from adapt.config import Config, EvaluationConfig, TrainingConfig
from adapt.evaluate.measure_model import HITS_FILE
from adapt.evaluate.measurements import NEIGHBOURS, TaskNeighbours
from adapt.evaluate.probe import (
    Probe,
    halves_of,
    knn_labels,
    linear_labels,
    mean_features,
    nearest_neighbours,
    score_of,
)
from adapt.evaluate.while_training import TaskProbe, probed_examples
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.task.prepare_task import Facts, Split
from adapt.train.points import Place, Points, evaluating
from adapt.train.training_run import Progress
from tests.train.toy import LENGTH, Case, Tokenizer, build, feed, model

NAMES = {"toy.dev_macro_f1", "toy.other_dev_macro_f1"}


def prepared(folder: Path, train: int = 31, dev: int = 17) -> Path:
    """Writes a prepared task in which each class has its own range of tokens. Some texts are longer than a row."""
    draw = np.random.default_rng(0)
    for split, count in {"train": train, "dev": dev}.items():
        labels = [number % 3 for number in range(count)]
        tokens = [
            draw.integers(5 + 15 * label, 25 + 15 * label, draw.integers(2, 20)).astype(np.int32) for label in labels
        ]
        segments = [np.zeros(len(text), np.int8) for text in tokens]
        leaked = [split == "dev" and number == 3 for number in range(count)]
        Split(list(map(str, range(count))), tokens, segments, labels, leaked).save(folder, split)
    Facts("toy", "single_label", ["a", "b", "c"], "macro_f1").save(folder)
    return folder


def place(device: torch.device, rank: int, world: int) -> Place:
    config = Config(
        training=TrainingConfig(sequence_length=LENGTH),
        evaluation=EvaluationConfig(sequence_length=LENGTH, micro_batch=4),
    )
    return Place(config, Tokenizer(), device, micro_batch=3, rank=rank, world=world)


def trained(case: Case, folder: Path | None, kind: str) -> tuple[dict[str, torch.Tensor], Progress]:
    """Trains on the calling rank. If `folder` holds a task, a probe measures the model at every second step."""
    loop, progress = build(case), Progress()
    if folder:
        here = place(loop.engine.device, dist.get_rank(), dist.get_world_size())
        probe = TaskProbe(str(folder), kind, 40).ready(here)
        loop = replace(loop, points=Points(loop.engine, [probe], 2, loop.training, loop.objective, loop.method))
    loop.run(feed(0, case.steps, case.global_batch), progress, lambda _: None, lambda _: None)
    return loop.engine.full_state(), progress


@pytest.mark.parametrize(("zero_stage", "is_padded"), [(0, True), (2, False), (3, False), (3, True)])
def test_weights_do_not_depend_on_probes_and_scores_not_on_ranks(
    ranks, tmp_path: Path, zero_stage: int, is_padded: bool
) -> None:
    task, kind = prepared(tmp_path), "linear" if is_padded else "knn"
    case = Case(zero_stage, 4, dropout=0.1, is_padded=is_padded)
    (plain, _), *_ = ranks(2).run(trained, case, None, kind)
    (probed, on_two), *_ = ranks(2).run(trained, case, task, kind)
    assert all(torch.equal(value, probed[name]) for name, value in plain.items())
    ((_, on_one),) = ranks(1).run(trained, replace(case, zero_stage=0), task, kind)
    assert [point["step"] for point in on_two.points] == [0, 2, 4]
    assert on_two.points[0]["figures"].keys() == NAMES
    # compares only the scores before the first step, because later weights differ by rounding
    assert on_two.points[0] == on_one.points[0]


def test_scores_follow_from_features_of_texts_passed_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = model()
    prepared(tmp_path)
    monkeypatch.setattr(Place, "add_up", lambda *_: None)
    probe = Probe(place(torch.device("cpu"), 0, 1), TaskProbe(str(tmp_path), "knn", 1000))
    with evaluating(toy):
        scores, features = probe(toy), probe.features(toy)

    expected: dict[str, tuple[list[np.ndarray], list[int]]] = {}
    for split in ("train", "dev"):
        texts = Split.load(tmp_path, split)
        kept = [number for number, leaks in enumerate(texts.leaked) if not leaks]
        rows = []
        for number in kept:
            ids = torch.tensor(texts.tokens[number][:LENGTH].astype(int))[None]
            with torch.no_grad():
                states = toy.eval().base_model(input_ids=ids).last_hidden_state[0]
            rows.append(states.mean(0).numpy())
        expected[split] = rows, [texts.labels[number] for number in kept]  # type: ignore[misc]
    both = np.array([*expected["train"][0], *expected["dev"][0]])
    found = features[np.lexsort(features.T)]
    # sorts both arrays, because they have the same rows in different orders
    np.testing.assert_allclose(found, both[np.lexsort(both.T)], atol=1e-5)

    known, labels = np.array(expected["train"][0]), np.array(expected["train"][1])
    unit = known / np.linalg.norm(known, axis=1, keepdims=True)
    votes = [
        np.bincount(labels[np.argsort(-(unit @ (text / np.linalg.norm(text))))[:NEIGHBOURS]], minlength=3).argmax()
        for text in expected["dev"][0]
    ]
    right = np.mean(np.array(votes) == expected["dev"][1])
    assert scores.keys() == NAMES
    # the scores are macro-F1 on halves of dev, so they only approximate the accuracy
    assert abs(np.mean(list(scores.values())) - right) < 0.35


def test_scores_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import f1_score

    draw = np.random.default_rng(0)
    truth, predicted = draw.integers(0, 4, 50), draw.integers(0, 4, 50)
    for average in ("macro", "micro"):
        expected = f1_score(truth, predicted, average=average, zero_division=0)
        assert score_of(truth, predicted, 4, f"{average}_f1") == pytest.approx(expected)


def test_scores_of_several_labels_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import accuracy_score, f1_score

    draw = np.random.default_rng(0)
    truth, predicted = draw.integers(0, 2, (50, 4)), draw.integers(0, 2, (50, 4))
    for average in ("macro", "micro"):
        expected = f1_score(truth, predicted, average=average, zero_division=0)
        assert score_of(truth, predicted, 4, f"{average}_f1") == pytest.approx(expected)
    assert score_of(truth, predicted, 4, "accuracy") == pytest.approx(accuracy_score(truth, predicted))


@pytest.mark.parametrize("kind", ["knn", "linear"])
def test_each_label_of_a_text_is_predicted_as_if_it_were_the_only_one(kind: str) -> None:
    draw = np.random.default_rng(0)
    known, asked = draw.normal(size=(60, 3)), draw.normal(size=(40, 3))
    # the third label never occurs
    labels = np.stack([known[:, 0] > 0, known[:, 1] > 0.5, known[:, 2] > 9], axis=1).astype(int)
    predict = linear_labels if kind == "linear" else partial(knn_labels, neighbours=5)
    several = predict(known, labels, asked)
    assert several.shape == (40, 3)
    for column in range(3):
        np.testing.assert_array_equal(several[:, column], predict(known, labels[:, column], asked))


def test_a_task_with_several_labels_per_text_is_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text has the label that its tokens indicate. Texts with an even index also have the label b."""
    prepared(tmp_path)
    for split in ("train", "dev"):
        one = Split.load(tmp_path, split)
        labels = [sorted({label, 1} if number % 2 == 0 else {label}) for number, label in enumerate(one.labels)]
        replace(one, labels=labels).save(tmp_path, split)
    Facts("toy", "multi_label", ["a", "b", "c"], "macro_f1").save(tmp_path)
    monkeypatch.setattr(Place, "add_up", lambda *_: None)
    probe, toy = Probe(place(torch.device("cpu"), 0, 1), TaskProbe(str(tmp_path), "linear", 1000)), model()
    assert probe._labels.shape == (31, 3)
    assert sorted(map(tuple, np.concatenate(probe._truth))) == sorted(
        tuple(int(label in those) for label in range(3))
        for those, leaks in zip(labels, Split.load(tmp_path, "dev").leaked, strict=True)
        if not leaks
    )
    with evaluating(toy):
        scores = probe(toy)
    assert scores.keys() == NAMES
    assert all(0.3 < score <= 1 for score in scores.values())


def test_the_linear_probe_minimizes_regularized_log_loss() -> None:
    draw = np.random.default_rng(0)
    known, asked = draw.normal(size=(60, 3)) * [1, 5, 0.2], draw.normal(size=(200, 3)) * [1, 5, 0.2]
    labels = (known @ [1.0, 0.2, 5.0] + draw.normal(size=60) > 0).astype(int)
    mean, spread = known.mean(0), known.std(0)
    x = torch.tensor((known - mean) / spread)
    weights = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-10)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        logits = x @ weights[:3] + weights[3]
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, torch.tensor(labels * 1.0), reduction="sum"
        )
        total = losses + (weights[:3] ** 2).sum() / 2
        total.backward()
        return total

    optimizer.step(closure)
    with torch.no_grad():
        expected = (torch.tensor((asked - mean) / spread) @ weights[:3] + weights[3] > 0).int().numpy()
    assert (linear_labels(known, labels, asked) == expected).mean() > 0.99
    # all labels are 1, so all predictions are 1
    assert linear_labels(known, np.ones(60, int), asked).tolist() == [1] * 200


def test_halves_have_equal_shares_of_each_class() -> None:
    labels = np.array([0] * 10 + [1] * 4 + [2] * 3)
    one, other = halves_of(labels)
    assert sorted([*one, *other]) == list(range(17))
    assert np.abs(np.bincount(labels[one]) - np.bincount(labels[other])).max() <= 1


@pytest.mark.parametrize(
    ("train", "dev", "examples", "divided"),
    [(100, 100, 60, (30, 30)), (100, 10, 60, (50, 10)), (10, 100, 60, (10, 50)), (5, 5, 60, (5, 5))],
)
def test_examples_are_divided_between_train_and_dev(
    train: int, dev: int, examples: int, divided: tuple[int, int]
) -> None:
    assert probed_examples(train, dev, examples) == divided


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
    """Computes the last hidden states [tokens, hidden size] of each text with `transformers`, in a separate pass."""
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
    replace(train, **{name: value * NEIGHBOURS for name, value in vars(train).items()}).save(tmp_path, "train")
    test = Split(train.ids[:4], train.tokens[:4], train.segments[:4], [0, 1, 1, 0], [False, False, True, True])
    test.save(tmp_path, "test")
    config = Config(evaluation=EVALUATION)
    found = nearest_neighbours(config, Pretrained(tiny_bert, tiny_bert), {"toy": tmp_path}, tmp_path)
    # The nearest neighbours of each text are its copies in train. Texts 0 and 1 have the same labels there. Texts 2 and
    # 3 have other labels, but are left out because they are marked as leaked.
    assert found == {"toy": TaskNeighbours(accuracy=1.0, examples=2, left_out=2)}
    assert json.loads((tmp_path / HITS_FILE).read_text()) == {"toy": [1, 1]}
