"""Tests losses per token and per byte with bootstrap intervals."""

import json
import math
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from adapt.config import EvaluationConfig, ObjectiveConfig
from adapt.corpus.encode_chunks import Encode
from adapt.corpus.prepare_corpus import chunk_row
from adapt.evaluate.losses import Heldout, heldout_losses, predictable_tokens
from adapt.evaluate.measure_model import (
    LOSSES_FILE,
    TextLosses,
    byte_change,
    byte_loss,
    change,
    mean_loss,
    summed_losses,
)
from adapt.evaluate.model_matrix import compare_models
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.masking import make
from adapt.objective.objective import CausalLanguageModelling
from adapt.support.errors import DataError
from tests.samples import sentences

N = 1000


@pytest.fixture(scope="module")
def measured() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns summed losses of two models, and numbers of predictions, for 1000 documents of unequal length.

    The losses differ more between documents than between the models.
    """
    draw = np.random.default_rng(0)
    counts = draw.geometric(0.1, N)
    difficulty = draw.normal(2.0, 0.7, N)
    before = counts * (difficulty + draw.normal(0, 0.1, N))
    after = counts * (difficulty - 0.2 + draw.normal(0, 0.1, N))
    return before, after, counts


def delta_method(losses: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """Returns the 95% interval (delta method, normal approximation) of a ratio of sums over independent documents."""
    ratio = losses.sum() / counts.sum()
    deviation = np.sqrt(((losses - ratio * counts) ** 2).sum()) / counts.sum()
    return ratio - 1.96 * deviation, ratio + 1.96 * deviation


def plain_bootstrap(losses: np.ndarray, counts: np.ndarray, samples: int = 4000) -> tuple[float, float]:
    draw = np.random.default_rng(1)
    ratios = []
    for _ in range(samples):
        chosen = draw.integers(0, len(losses), len(losses))
        ratios.append(losses[chosen].sum() / counts[chosen].sum())
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 500)), min_size=1, max_size=20))
def test_value_is_summed_loss_over_summed_predictions(documents: list[tuple[float, int]]) -> None:
    losses, counts = (np.array([document[i] for document in documents]) for i in (0, 1))
    value = mean_loss(losses, counts, 10).value
    assert value == pytest.approx(sum(loss for loss, _ in documents) / sum(count for _, count in documents))


def test_documents_weigh_by_their_predictions() -> None:
    # The mean over all 10 predictions is 28 / 10. The plain mean of the documents' losses, 1 and 3, would be 2.
    assert mean_loss(np.array([1.0, 27.0]), np.array([1, 9]), 10).value == 2.8


def test_interval_agrees_with_bootstrap_and_normal_approximation(
    measured: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    before, after, counts = measured
    for losses in (before, after, after - before):
        estimate = mean_loss(losses, counts, 4000)
        assert estimate.low is not None
        assert estimate.high is not None
        width = estimate.high - estimate.low
        assert estimate.low < estimate.value < estimate.high
        for low, high in (delta_method(losses, counts), plain_bootstrap(losses, counts)):
            assert estimate.low == pytest.approx(low, abs=0.06 * width)
            assert estimate.high == pytest.approx(high, abs=0.06 * width)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(2)
    covered = 0
    for _ in range(300):
        counts = draw.geometric(0.1, 100)
        losses = counts * draw.normal(2.0, 0.5, 100)
        estimate = mean_loss(losses, counts, 300)
        covered += estimate.low <= 2.0 <= estimate.high
    # About 95% of the intervals contain the true loss 2. The bounds of the test are wider because 300
    # trials are noisy and percentile intervals are biased.
    assert 0.89 < covered / 300 < 0.985


def test_change_is_paired(measured: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    before, after, counts = measured
    estimate = change(before, after, counts, 2000)
    old, new = mean_loss(before, counts, 2000), mean_loss(after, counts, 2000)
    assert estimate.value == pytest.approx(new.value - old.value)
    assert estimate.value == pytest.approx(-0.2, abs=0.02)
    width, unpaired = estimate.high - estimate.low, np.hypot(old.high - old.low, new.high - new.low)
    assert width < unpaired / 5
    assert estimate.high < 0


def test_change_has_the_sign_of_a_gain_or_a_loss(measured: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    before, after, counts = measured
    there, back = change(before, after, counts, 500), change(after, before, counts, 500)
    assert astuple(there) == pytest.approx((-back.value, -back.high, -back.low))


def test_identical_models_do_not_change(measured: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    before, _, counts = measured
    assert astuple(change(before, before.copy(), counts, 500)) == (0.0, 0.0, 0.0)


def test_one_document_has_no_interval() -> None:
    assert astuple(mean_loss(np.array([6.0]), np.array([4]), 100)) == (1.5, None, None)
    assert astuple(change(np.array([6.0]), np.array([2.0]), np.array([4]), 100)) == (-1.0, None, None)


@pytest.mark.parametrize("documents", [2, 5])
def test_fewer_than_six_documents_have_no_interval(documents: int) -> None:
    """Five documents are too few for a 95% interval.

    All five lie on the same side of the true median with probability 2 * 0.5**5 = 6%, so even the range from the lowest
    to the highest value holds the median less than 95% of the time. `binomtest` computes this probability.
    """
    losses, counts = np.arange(1.0, documents + 1), np.ones(documents, int)
    assert astuple(mean_loss(losses, counts, 500)) == (losses.mean(), None, None)
    assert stats.binomtest(0, documents).pvalue > 0.05


def test_six_documents_have_an_interval() -> None:
    found = mean_loss(np.array([1.0, 2, 3, 4, 5, 9]), np.ones(6, int), 500)
    assert found.low is not None
    assert 1 < found.low < 4 < found.high < 9
    assert stats.binomtest(0, 6).pvalue < 0.05


def test_intervals_are_reproducible(measured: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    before, _, counts = measured
    assert mean_loss(before, counts, 300) == mean_loss(before, counts, 300)


def test_many_documents_need_little_memory() -> None:
    """Resampling 200,000 documents all at once would need about 3 GB. The peak must stay below 600 MiB."""
    import tracemalloc

    losses, counts = np.linspace(1, 2, 200_000), np.ones(200_000, np.int64)
    tracemalloc.start()
    estimate = mean_loss(losses, counts, 200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert estimate.value == pytest.approx(1.5)
    assert peak < 600 * 2**20


EVALUATION = EvaluationConfig(sequence_length=16, micro_batch=4)
TEXTS = [*sentences(20, seed=5), "Ünïcode zählt in Bytes.", "jxfd"]


@pytest.fixture
def corpus(tiny_bert: Path, tmp_path: Path) -> Path:
    """Returns a prepared corpus in which all texts are held out."""
    Encode(Pretrained(tiny_bert, tiny_bert), tmp_path, 1.0)(chunk_row(0, 0, TEXTS, None))
    return tmp_path


def drawn(seed: int, documents: int = 40) -> TextLosses:
    draw = np.random.default_rng(seed)
    predictable = draw.integers(10, 99, documents)
    counts = np.maximum(1, predictable // 7)
    return TextLosses(counts * draw.normal(3, 0.3, documents), counts, predictable, predictable * 4)


def test_a_sample_has_the_lengths_of_its_texts(corpus: Path) -> None:
    sample = Heldout.sample(corpus, EVALUATION)
    assert sample.sizes == [len(TEXTS[number].encode()) for number in sample.documents]
    assert sample.only([3, 1]).sizes == [sample.sizes[3], sample.sizes[1]]


def test_all_ordinary_tokens_are_predictable(corpus: Path, tiny_bert: Path) -> None:
    tokenizer, sample = load_tokenizer(tiny_bert), Heldout.sample(corpus, EVALUATION)
    objective = make(ObjectiveConfig(), tokenizer, 0)
    special = set(tokenizer.all_special_ids)
    ordinary = [sum(token not in special for token in tokens.tolist()) for tokens in sample.tokens]
    found = predictable_tokens(objective, sample, EVALUATION)
    # If a piece consists only of special tokens, one of these tokens counts as predictable.
    assert all(0 <= more <= 1 for more in found - ordinary)
    assert found.sum() <= sum(ordinary) + 1


def test_bits_per_byte_of_a_causal_model(corpus: Path) -> None:
    sample, objective = Heldout.sample(corpus, EVALUATION), CausalLanguageModelling()
    uniform = torch.nn.Module()

    def losses(model: torch.nn.Module, corrupted: object) -> torch.Tensor:
        return torch.full((int(corrupted.positions.sum()),), math.log(50))  # type: ignore[attr-defined]

    objective.losses = losses  # type: ignore[method-assign]
    total, counts = heldout_losses(uniform, objective, sample, EVALUATION, torch.device("cpu"))
    predictable = predictable_tokens(objective, sample, EVALUATION)
    assert predictable.tolist() == counts.tolist()
    assert sample.sizes
    measured = TextLosses(total, counts, predictable, np.array(sample.sizes))
    assert byte_loss(measured, 10).value == pytest.approx(counts.sum() * math.log2(50) / sum(sample.sizes))


def test_bits_per_byte_do_not_depend_on_the_masked_share(corpus: Path, tiny_bert: Path) -> None:
    """The loss of masked tokens is extrapolated to all tokens, so masking twice as many gives about the same value."""
    model, sample = load_model(tiny_bert), Heldout.sample(corpus, EVALUATION)
    found = []
    for share in (0.15, 0.3):
        objective = make(ObjectiveConfig(mask_fraction=share), load_tokenizer(tiny_bert), 0)
        losses, counts = heldout_losses(model, objective, sample, EVALUATION, torch.device("cpu"))
        predictable = predictable_tokens(objective, sample, EVALUATION)
        assert counts.sum() < 0.5 * predictable.sum()
        found.append(byte_loss(TextLosses(losses, counts, predictable, np.array(sample.sizes)), 10).value)
    # An untrained model has about the same loss at all tokens, so both samples of tokens give about the same mean.
    assert found[0] == pytest.approx(found[1], rel=0.1)


def test_a_random_guess_among_all_bytes_takes_eight_bits_per_byte() -> None:
    """A uniform guess takes 8 bits per byte, with tokens of one byte and with tokens of two bytes.

    Each token of one byte is guessed with probability 1/256, and each token of two bytes with 1/65536.
    """
    sizes = np.array([100, 37, 8])
    of_bytes = TextLosses(sizes * -math.log(1 / 256), sizes, sizes, sizes)
    of_pairs = TextLosses(sizes // 2 * -math.log(1 / 65536), sizes // 2, sizes / 2, sizes)
    assert byte_loss(of_bytes, 10).value == pytest.approx(8)
    assert byte_loss(of_pairs, 10).value == pytest.approx(8)
    values = {name: column.tolist() for name, column in vars(of_bytes).items()}
    assert summed_losses(values, 0, (None, None, None)).bits_per_byte == pytest.approx(8)


def test_intervals_are_those_of_a_plain_bootstrap_over_documents() -> None:
    first, second = drawn(0), drawn(1)
    draw, found = np.random.default_rng(5), []
    for _ in range(3000):
        some = draw.integers(0, 40, 40)
        each = [
            (one.losses[some].sum() / one.counts[some].sum() / math.log(2))
            * (one.predictable[some].sum() / one.sizes[some].sum())
            for one in (first, second)
        ]
        found.append(each[1] - each[0])
    change = byte_change(first, second, 3000)
    assert change.value == pytest.approx(byte_loss(second, 10).value - byte_loss(first, 10).value)
    width = np.quantile(found, 0.975) - np.quantile(found, 0.025)
    assert (change.low, change.high) == pytest.approx(tuple(np.quantile(found, [0.025, 0.975])), abs=0.1 * width)


# --- comparisons of models with different tokenizers


def evaluation(folder: Path, measured: TextLosses, sizes: bool = True) -> Path:
    folder.mkdir()
    values = {name: column.tolist() for name, column in vars(measured).items() if sizes or name != "sizes"}
    (folder / LOSSES_FILE).write_text(json.dumps({"cells": values}))
    return folder


def halved(measured: TextLosses) -> TextLosses:
    """Returns the losses of the same texts with tokens twice as long. Each such token has twice the loss."""
    counts = np.maximum(1, measured.counts // 2)
    return TextLosses(measured.losses * 2 * counts / measured.counts, counts, measured.predictable / 2, measured.sizes)


def test_bits_per_byte_do_not_depend_on_the_length_of_tokens(tmp_path: Path) -> None:
    counts = np.full(40, 10)
    base = TextLosses(counts * np.random.default_rng(0).normal(3, 0.3, 40), counts, counts * 7, counts * 30)
    folders = {
        "base": evaluation(tmp_path / "base", base),
        # the second model measured only 35 of 40 documents, because the sample is limited by tokens
        "long": evaluation(tmp_path / "long", halved(base)[:35]),
    }
    found = compare_models(folders, ["cells"], 50, tmp_path, "byte")
    assert (found.unit, found.documents) == ("bits per byte", {"cells": 35})
    assert found.loss[1][0] == pytest.approx(found.loss[0][0]) == pytest.approx(byte_loss(base[:35], 10).value)
    assert found.change[1][0] == pytest.approx(0, abs=1e-9)
    assert (tmp_path / "matrix.png").exists()


def test_other_documents_are_refused(tmp_path: Path) -> None:
    folders = {str(seed): evaluation(tmp_path / str(seed), drawn(seed)) for seed in (0, 1)}
    with pytest.raises(DataError, match="not measured on the same documents of cells"):
        compare_models(folders, ["cells"], 50, tmp_path, "byte")


def test_texts_of_an_older_version_are_refused_by_name(tmp_path: Path) -> None:
    folders = {"base": evaluation(tmp_path / "base", drawn(0), sizes=False)}
    with pytest.raises(DataError, match=r"lacks the lengths of the texts of cells[\s\S]*delete .*base"):
        compare_models(folders, ["cells"], 50, tmp_path, "byte")
