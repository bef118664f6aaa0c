"""Tests the held-out loss of corpus samples and of other texts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from adapt.config import Config, EvaluationConfig, ObjectiveConfig
from adapt.corpus.token_shards import write_shard
from adapt.evaluate.losses import Heldout, heldout_losses, loss_on
from adapt.model.load import load_model
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.masking import MaskedLanguageModelling
from adapt.objective.objective import Batch

CPU = torch.device("cpu")
EVALUATION = EvaluationConfig(sequence_length=32, micro_batch=4)


def random_documents(count: int, longest: int = 90, seed: int = 0) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [[2, *draw.integers(5, 154, draw.integers(1, longest)).tolist(), 3] for _ in range(count)]


DOCUMENTS = random_documents(30)


def shards(folder: Path, documents: list[list[int]], places: list[int]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, (start, stop) in enumerate(zip([0, *places], [*places, len(documents)], strict=True)):
        write_shard(folder / f"heldout-{number:06d}-000000.arrow", documents[start:stop], 154)
    write_shard(folder / "train-000000-000000.arrow", [[2, 9, 9, 3]] * 50, 154)  # this training text is not measured
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return shards(tmp_path / "corpus", DOCUMENTS, [11, 20])


@pytest.fixture(scope="module")
def model(tiny_bert: Path) -> PreTrainedModel:
    return load_model(tiny_bert)


@pytest.fixture(scope="module")
def objective(tiny_bert: Path) -> MaskedLanguageModelling:
    return MaskedLanguageModelling(ObjectiveConfig(), load_tokenizer(tiny_bert), 0)


# --- the sample


def test_sample_is_a_random_order_of_the_heldout_documents(corpus: Path) -> None:
    sample = Heldout.sample(corpus, EVALUATION)
    assert sorted(sample.documents) == list(range(30))
    assert sample.documents != list(range(30))
    assert [tokens.tolist() for tokens in sample.tokens] == [DOCUMENTS[number] for number in sample.documents]


def test_sample_is_fixed(corpus: Path, tmp_path: Path) -> None:
    again = Heldout.sample(shards(tmp_path / "other", DOCUMENTS, [1, 2, 2, 29]), EVALUATION)
    assert again.documents == Heldout.sample(corpus, EVALUATION).documents


@pytest.mark.parametrize("most", [1, 2, 29, 30, 31, 10**9])
def test_a_sample_has_at_most_the_configured_number_of_documents(corpus: Path, most: int) -> None:
    whole = Heldout.sample(corpus, EVALUATION)
    sample = Heldout.sample(corpus, replace(EVALUATION, max_documents=most))
    assert sample.documents == whole.documents[:most]
    assert len(sample.tokens) == min(most, 30)


@pytest.mark.parametrize("most", [1, 100, 500, 10**9])
def test_sample_ends_once_it_has_the_tokens(corpus: Path, most: int) -> None:
    whole = Heldout.sample(corpus, EVALUATION)
    sample = Heldout.sample(corpus, replace(EVALUATION, max_tokens=most))
    assert sample.documents == whole.documents[: len(sample.documents)]
    lengths = [len(tokens) for tokens in sample.tokens]
    assert sum(lengths[:-1]) < most
    assert sum(lengths) >= most or len(lengths) == 30


def test_no_heldout_documents(tmp_path: Path, model: PreTrainedModel, objective: MaskedLanguageModelling) -> None:
    write_shard(tmp_path / "train-000000-000000.arrow", [[2, 9, 3]], 154)
    sample = Heldout.sample(tmp_path, EVALUATION)
    assert (sample.documents, sample.tokens) == ([], [])
    losses, counts = heldout_losses(model, objective, sample, EVALUATION, CPU)
    assert losses.shape == counts.shape == (0,)


# --- batches


@pytest.mark.parametrize(("length", "micro_batch"), [(32, 4), (7, 1), (90, 100), (200, 3)])
def test_pieces_hold_every_token_once(corpus: Path, length: int, micro_batch: int) -> None:
    sample = Heldout.sample(corpus, EVALUATION)
    found: dict[int, list[tuple[int, list[int]]]] = {}
    for index, batch in sample.batches(length, micro_batch):
        assert 1 <= len(index) <= micro_batch
        assert batch.tokens.shape[1] == batch.lengths.max() <= length
        assert batch.starts.nonzero()[:, 1].tolist() == [0] * len(index)  # no row contains a second document
        for document, row, tokens, size in zip(index, batch.rows, batch.tokens, batch.lengths, strict=True):
            found.setdefault(int(document), []).append((int(row), tokens[:size].tolist()))
            assert not tokens[size:].any()
    addresses = [row for pieces in found.values() for row, _ in pieces]
    assert len(addresses) == len(set(addresses))
    for index, number in enumerate(sample.documents):
        assert [token for _, tokens in sorted(found[index]) for token in tokens] == DOCUMENTS[number]


@pytest.mark.parametrize("length", [7, 32, 200])
def test_marks_come_with_their_tokens(tmp_path: Path, length: int) -> None:
    even = [[token % 2 == 0 for token in document] for document in DOCUMENTS]
    write_shard(tmp_path / "heldout-000000-000000.arrow", DOCUMENTS, 154, {"even": even})
    sample = Heldout.sample(tmp_path, EVALUATION, ["even"])
    for _, batch in sample.batches(length, 4):
        assert torch.equal(batch.marks["even"], (batch.tokens % 2 == 0) & batch.real)


# --- losses


def by_number(sample: Heldout, values: np.ndarray) -> np.ndarray:
    return values[np.argsort(sample.documents)]


def brute_force(
    model: PreTrainedModel, objective: MaskedLanguageModelling, sample: Heldout, length: int
) -> tuple[list[float], list[int]]:
    """Computes the loss and the number of predictions of each document, with one piece per pass and without padding.

    The output head is applied to all tokens, not only to masked tokens.
    """
    losses, counts = [], []
    for number, tokens in zip(sample.documents, sample.tokens, strict=True):
        losses.append(0.0)
        counts.append(0)
        for piece, start in enumerate(range(0, len(tokens), length)):
            ids = torch.tensor(tokens[start : start + length].tolist())[None]
            address = torch.tensor([number * 2**20 + piece])
            starts = torch.arange(ids.shape[1])[None] == 0
            size = torch.tensor([ids.shape[1]])
            corrupted = objective.corrupt(Batch(ids, size, torch.tensor([0]), address, starts))
            with torch.no_grad():
                scores = model(input_ids=corrupted.input_ids).logits[corrupted.positions].double()
            chosen = scores[torch.arange(len(scores)), corrupted.targets]
            losses[-1] += float((scores.logsumexp(1) - chosen).sum())
            counts[-1] += len(scores)
    return losses, counts


@pytest.mark.parametrize("length", [16, 32, 100])
def test_sums_equal_a_loop_over_single_documents(
    corpus: Path, model: PreTrainedModel, objective: MaskedLanguageModelling, length: int
) -> None:
    sample = Heldout.sample(corpus, EVALUATION)
    evaluation = replace(EVALUATION, sequence_length=length, micro_batch=5)
    losses, counts = heldout_losses(model, objective, sample, evaluation, CPU)
    expected_losses, expected_counts = brute_force(model, objective, sample, length)
    assert counts.tolist() == expected_counts
    assert np.allclose(losses, expected_losses, rtol=1e-5)
    # The documents' losses differ, so the test would notice losses that are assigned to wrong documents.
    assert np.std(losses / counts) > 0.1


@pytest.mark.parametrize("micro_batch", [1, 2, 7, 1000])
def test_independent_of_the_micro_batch(
    corpus: Path, model: PreTrainedModel, objective: MaskedLanguageModelling, micro_batch: int
) -> None:
    sample = Heldout.sample(corpus, EVALUATION)
    losses, counts = heldout_losses(model, objective, sample, EVALUATION, CPU)
    evaluation = replace(EVALUATION, micro_batch=micro_batch)
    other_losses, other_counts = heldout_losses(model, objective, sample, evaluation, CPU)
    assert np.array_equal(counts, other_counts)
    assert np.allclose(losses, other_losses, rtol=1e-5)


def test_independent_of_the_shards_and_of_the_sample_around(
    corpus: Path, tmp_path: Path, model: PreTrainedModel, objective: MaskedLanguageModelling
) -> None:
    sample = Heldout.sample(corpus, EVALUATION)
    losses, counts = heldout_losses(model, objective, sample, EVALUATION, CPU)
    other = Heldout.sample(shards(tmp_path / "other", DOCUMENTS, [3, 3, 25]), EVALUATION)
    other_losses, other_counts = heldout_losses(model, objective, other, EVALUATION, CPU)
    assert np.array_equal(by_number(sample, counts), by_number(other, other_counts))
    assert np.allclose(by_number(sample, losses), by_number(other, other_losses), rtol=1e-5)

    fewer = replace(EVALUATION, max_documents=7)
    few_losses, few_counts = heldout_losses(model, objective, Heldout.sample(corpus, fewer), fewer, CPU)
    assert np.array_equal(few_counts, counts[:7])
    assert np.allclose(few_losses, losses[:7], rtol=1e-5)


def test_masks_are_the_same_for_every_model(
    corpus: Path, model: PreTrainedModel, objective: MaskedLanguageModelling
) -> None:
    """Two models are measured on the same masks, so their losses can be compared in pairs.

    Dropout is off, so measuring a model twice gives the same losses.
    """
    sample = Heldout.sample(corpus, EVALUATION)
    model.train()
    first = heldout_losses(model, objective, sample, EVALUATION, CPU)
    second = heldout_losses(model, objective, sample, EVALUATION, CPU)
    assert np.array_equal(first[0], second[0])
    other = type(model)(model.config)
    other_losses, other_counts = heldout_losses(other, objective, sample, EVALUATION, CPU)
    assert np.array_equal(other_counts, first[1])
    assert not np.allclose(other_losses, first[0], rtol=1e-2)


def test_the_order_of_the_sample_does_not_change_a_documents_loss(
    corpus: Path, model: PreTrainedModel, objective: MaskedLanguageModelling
) -> None:
    sample = Heldout.sample(corpus, EVALUATION)
    losses, counts = heldout_losses(model, objective, sample, EVALUATION, CPU)
    turned = Heldout(sample.documents[::-1], sample.tokens[::-1])
    turned_losses, turned_counts = heldout_losses(model, objective, turned, EVALUATION, CPU)
    assert np.array_equal(turned_counts[::-1], counts)
    assert np.allclose(turned_losses[::-1], losses, rtol=1e-5)


@pytest.mark.parametrize("kind", ["mlm", "entity"])
def test_equals_the_heldout_loss(tiny_bert: Path, tmp_path: Path, kind) -> None:
    draw = np.random.default_rng(0)
    texts = [[2, *draw.integers(5, 154, draw.integers(1, 60)).tolist(), 3] for _ in range(12)]
    write_shard(tmp_path / "heldout-000000-000000.arrow", texts, 154)
    model, tokenizer = load_model(tiny_bert), load_tokenizer(tiny_bert)
    evaluation = EvaluationConfig(sequence_length=32)
    sample = Heldout.sample(tmp_path, evaluation)
    in_order = sorted(zip(sample.documents, sample.tokens, strict=True), key=lambda pair: pair[0])
    losses, counts = heldout_losses(
        model, MaskedLanguageModelling(ObjectiveConfig(), tokenizer, 0), sample, evaluation, CPU
    )
    config = Config(objective=ObjectiveConfig(kind=kind), evaluation=evaluation)
    found = loss_on([tokens for _, tokens in in_order], model, tokenizer, config, CPU)
    assert found == pytest.approx(losses.sum() / counts.sum(), abs=1e-5)
