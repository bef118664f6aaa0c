"""Tests the classifier on packed batches, and its loss."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight
from torch import Tensor

from adapt.config import FinetuneConfig
from adapt.finetune.classifier import Classifier, TaskLoss, balanced, layer_states, new_classifier
from adapt.finetune.examples import ExampleBatch, Examples, Problem, in_passes
from adapt.finetune.seed_run import TrainedWords, train_all_words, train_used_words
from adapt.model.packing.isolation import keep_documents_apart
from adapt.task.prepare_task import IGNORED, Facts, Split
from tests.finetune.toy import toy
from tests.model.architectures import random_model

CPU = torch.device("cpu")
ALL = np.arange(40)


def setting(
    name: str, folder: Path, kind: str, pooling: str, pairs: bool = False
) -> tuple[Classifier, Split, Examples]:
    facts = toy(folder, kind, pairs)
    split = Split.load(folder, "dev")
    model = random_model(name).eval()
    keep_documents_apart(model)
    torch.manual_seed(0)
    classifier = new_classifier(model.base_model, FinetuneConfig(), pooling, kind, 3).eval()
    for parameter in classifier.head.parameters():
        parameter.data *= 20  # larger weights make the logits of examples differ clearly
    return classifier, split, Examples.of(split, facts, 128, [])


def padded(name: str, classifier: Classifier, split: Split, pooling: str) -> Tensor:
    """Computes the classifier's logits from padded rows, with the attention of the library `transformers`."""
    model = random_model(name).eval()
    longest = max(map(len, split.tokens))
    rows = torch.tensor([[*tokens, *[0] * (longest - len(tokens))] for tokens in split.tokens])
    mask = torch.tensor([[1] * len(tokens) + [0] * (longest - len(tokens)) for tokens in split.tokens])
    options = {}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        segments = [[*each, *[0] * (longest - len(each))] for each in split.segments]
        options["token_type_ids"] = torch.tensor(segments)
    if model.config.model_type == "roberta":
        # RoBERTa's positions start at pad_token_id + 1, which is 1 here
        options["position_ids"] = torch.arange(longest).expand(len(rows), -1) + 1
    states = model.base_model(input_ids=rows, attention_mask=mask, **options).last_hidden_state
    if isinstance(split.labels[0], list) and len(split.labels[0]) == len(split.tokens[0]):
        places = [(e, t) for e, labels in enumerate(split.labels) for t, each in enumerate(labels) if each != IGNORED]
        return classifier.head(torch.stack([states[place] for place in places]))
    lengths = mask.sum(1)
    pooled = {
        "first": lambda: states[:, 0],
        "last": lambda: states[torch.arange(len(rows)), lengths - 1],
        "mean": lambda: (states * mask[..., None]).sum(1) / lengths[:, None],
    }[pooling]()
    return classifier.head(pooled)


@pytest.mark.parametrize(
    ("name", "kind", "pooling"),
    [
        ("bert", "single_label", "first"),
        ("bert", "multi_label", "mean"),
        ("bert", "tokens", "first"),
        ("roberta", "single_label", "first"),
        ("distilbert", "single_label", "mean"),
        ("deberta-v2", "single_label", "first"),
        ("deberta-v2", "tokens", "first"),
        ("modernbert", "single_label", "first"),
        ("gpt2", "single_label", "last"),
        ("llama", "single_label", "last"),
    ],
)
@torch.no_grad()
def test_packed_batches_give_the_same_logits_as_padded_ones(name: str, kind: str, pooling: str, tmp_path: Path) -> None:
    classifier, split, examples = setting(name, tmp_path, kind, pooling)
    expected = padded(name, classifier, split, pooling)
    found = classifier(examples.batch(ALL, CPU))
    assert found.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(in_passes(classifier, examples, CPU), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_segments_of_a_pair_matter(tmp_path: Path) -> None:
    classifier, split, examples = setting("bert", tmp_path, "single_label", "first", pairs=True)
    found = classifier(examples.batch(ALL, CPU))
    torch.testing.assert_close(found, padded("bert", classifier, split, "first"), rtol=1e-4, atol=1e-4)
    batch = examples.batch(ALL, CPU)
    batch.segments.zero_()
    assert not torch.allclose(classifier(batch), found, atol=1e-2)


@pytest.mark.parametrize("name", ["bert", "deberta-v2"])
@torch.no_grad()
def test_the_states_of_all_layers(name: str, tmp_path: Path) -> None:
    classifier, _, examples = setting(name, tmp_path, "single_label", "mean")
    batch = examples.batch(ALL, CPU)
    states = layer_states(classifier.encoder, batch, "mean")
    assert states.shape == (40, 3, 64)
    torch.testing.assert_close(classifier.head(states[:, -1]), classifier(batch))


@pytest.mark.parametrize("name", ["bert", "deberta-v2"])
def test_gradients_of_used_words_are_those_of_the_table(name: str, tmp_path: Path) -> None:
    classifier, _, examples = setting(name, tmp_path, "single_label", "first")
    batch, loss = examples.batch(ALL, CPU), TaskLoss("single_label")
    before = classifier(batch)
    loss(before, batch.targets).backward()
    expected = classifier.encoder.get_input_embeddings().weight.grad
    train_used_words(classifier.encoder, examples.tokens)
    words = classifier.encoder.get_input_embeddings()
    assert isinstance(words, TrainedWords)
    used = np.unique(examples.tokens)
    assert words.rows.shape == (len(used), 64)
    for training in (True, False):
        words.train(training)
        torch.testing.assert_close(classifier(batch), before)
    words.train()
    loss(classifier(batch), batch.targets).backward()
    torch.testing.assert_close(words.rows.grad, expected[used])
    # Both sums of absolute gradients are equal, so words that are not used have no gradient in the whole table.
    assert expected.abs().sum() == pytest.approx(words.rows.grad.abs().sum())


def test_tokens_that_are_not_trained_keep_their_vectors(tmp_path: Path) -> None:
    classifier, _, examples = setting("bert", tmp_path, "single_label", "first")
    table = classifier.encoder.get_input_embeddings().weight.detach().clone()
    train_used_words(classifier.encoder, np.array([7, 9]))
    words = classifier.encoder.get_input_embeddings().eval()
    words.rows.data += 1
    table[[7, 9]] += 1
    torch.testing.assert_close(words(torch.arange(300)), table)
    train_all_words(classifier.encoder)
    torch.testing.assert_close(classifier.encoder.get_input_embeddings().weight.detach(), table)
    assert isinstance(classifier(examples.batch(ALL[:2], CPU)), Tensor)


def test_examples_without_any_labelled_token() -> None:
    facts = Facts("toy", "tokens", ["B-x", "O"], "entity_f1")
    tokens = [np.arange(4, dtype=np.int32), np.arange(3, dtype=np.int32)]
    labels = [[IGNORED] * 4, [IGNORED, 1, IGNORED]]
    split = Split(["a", "b"], tokens, [np.zeros_like(each, np.int8) for each in tokens], labels, [False, False])
    examples = Examples.of(split, facts, 10, [])
    assert examples.units.tolist() == [0, 1]
    batch: ExampleBatch = examples.batch(np.array([1, 0]), CPU)
    assert batch.places is not None
    assert batch.places.tolist() == [1]
    assert batch.targets.tolist() == [1]


LOGITS = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 3)))
TARGETS = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])
SEVERAL = (np.random.default_rng(1).random((9, 3)) < 0.5).astype(np.float32)


def test_balanced_weights_are_scikit_learns() -> None:
    expected = compute_class_weight("balanced", classes=np.arange(3), y=TARGETS)
    np.testing.assert_allclose(balanced(TARGETS, 3), expected, rtol=1e-6)
    ignored = np.concatenate((TARGETS, [IGNORED] * 4))
    np.testing.assert_allclose(balanced(ignored, 3), expected, rtol=1e-6)


def test_a_class_without_examples_has_weight_zero() -> None:
    np.testing.assert_allclose(balanced(TARGETS * 2, 5)[::2], balanced(TARGETS, 3))
    assert balanced(TARGETS * 2, 5)[1] == 0


def test_balanced_weights_of_several_labels() -> None:
    for column, weight in zip(SEVERAL.T, balanced(SEVERAL, 3), strict=True):
        no, yes = compute_class_weight("balanced", classes=np.arange(2), y=column)
        assert weight == pytest.approx(yes / no)


@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(weighted: bool) -> None:
    loss = TaskLoss("single_label", balanced(TARGETS, 3) if weighted else None)
    probabilities = loss.probabilities(LOGITS).double().numpy()
    weights = compute_sample_weight("balanced", TARGETS) if weighted else None
    found = loss(LOGITS, torch.from_numpy(TARGETS)).item()
    assert found == pytest.approx(log_loss(TARGETS, probabilities, sample_weight=weights), rel=1e-5)


def test_binary_cross_entropy() -> None:
    loss = TaskLoss("multi_label")
    probabilities = loss.probabilities(LOGITS).double().numpy()
    expected = [log_loss(SEVERAL[:, c], probabilities[:, c], labels=[0, 1]) for c in range(3)]
    assert loss(LOGITS, torch.from_numpy(SEVERAL)).item() == pytest.approx(np.mean(expected), rel=1e-5)


def test_a_label_of_all_examples_is_learned_too() -> None:
    weights = balanced(np.array([[1, 0], [1, 1]], np.float32), 2)
    assert weights.tolist() == [1, 1]


def test_a_batch_without_labelled_tokens() -> None:
    logits = torch.zeros(0, 3, requires_grad=True)
    loss = TaskLoss("tokens")(logits, torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["single_label", "multi_label", "tokens"])
def test_weighted_losses_of_parts_add_up_to_the_mean(kind: str, weighted: bool, tmp_path: Path) -> None:
    """The loss of a batch equals the weighted mean of its parts' losses.

    The weight of a part (its mass) is the sum of the class weights of its units. A unit is a labelled token if the
    task labels tokens, and otherwise an example. The parts have different numbers of units and different classes.
    """
    toy(tmp_path, kind)
    examples = Problem.load(tmp_path, 128, []).examples["train"]
    loss = TaskLoss(kind, balanced(examples.targets, 3) if weighted else None)
    logits = torch.from_numpy(np.random.default_rng(2).normal(size=(int(examples.units.sum()), 3)))
    begins, masses = np.concatenate(([0], examples.units.cumsum())), loss.masses(examples)

    def mean(chosen: np.ndarray) -> float:
        units = np.concatenate([np.arange(begins[each], begins[each + 1]) for each in chosen])
        return loss(logits[units], examples.batch(chosen, torch.device("cpu")).targets).item()

    some = np.arange(2, 19)
    parts = np.split(some, [1, 6])
    together = sum(mean(part) * masses[part].sum() for part in parts) / masses[some].sum()
    assert together == pytest.approx(mean(some), rel=1e-5)
