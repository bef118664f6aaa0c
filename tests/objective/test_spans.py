"""Spans: their lengths, their places and how they are shown, as in SpanBERT."""

from math import sqrt

import pytest
import torch
from scipy.stats import chisquare

from adapt.config import ObjectiveConfig
from adapt.objective.base import Batch
from adapt.objective.build import make
from adapt.objective.spans import SpanMasking, length_distribution
from adapt.schema import WORD_STARTS
from tests.objective.rows import packed, units_by_hand, wrapped
from tests.samples import sentences
from tests.tokenizers import SPECIAL, wordpiece

CONFIG = ObjectiveConfig(kind="span")


def objective(config: ObjectiveConfig = CONFIG, seed: int = 0) -> SpanMasking:
    made = make(config, wrapped(wordpiece()), seed)
    assert isinstance(made, SpanMasking)
    return made


def words_of_one_token(rows: int, length: int, starts: tuple[int, ...] = (0,)) -> Batch:
    """Rows of ordinary tokens, each a word."""
    numbers, every = torch.arange(rows), torch.ones(rows, length, dtype=torch.bool)
    begins = torch.zeros_like(every)
    begins[:, starts] = True
    tokens = torch.full((rows, length), 40)
    return Batch(tokens, torch.full((rows,), length), numbers * 0, numbers, begins, {WORD_STARTS: every})


def test_lengths_have_spanberts_mean() -> None:
    chances = length_distribution(0.2, 10)
    assert float((chances * torch.arange(1, 11)).sum()) == pytest.approx(3.8, abs=0.01)
    for n in range(10):
        assert float(chances[n]) == pytest.approx(0.8**n * 0.2 / (1 - 0.8**10))


@pytest.mark.parametrize(("stop", "longest"), [(0.2, 10), (0.5, 3), (0.9, 1)])
def test_spans_have_the_lengths_of_the_truncated_geometric_distribution(stop: float, longest: int) -> None:
    """All that end inside the row: of a row's first n spans, with n fixed, none is left out for its length."""
    config = ObjectiveConfig(kind="span", span_stop=stop, span_max_words=longest)
    batch = words_of_one_token(2000, 5 * longest)
    heads = objective(config).heads(batch, batch.real)
    starts = heads == torch.arange(heads.shape[1])
    found = torch.zeros(longest, dtype=torch.int64)
    for row in starts:
        found += torch.bincount(row.nonzero().flatten().diff()[:4] - 1, minlength=longest)
    expected = length_distribution(stop, longest) * int(found.sum())
    assert int(found.sum()) == 4 * 2000
    assert longest == 1 or chisquare(found.numpy(), expected.numpy()).pvalue > 0.01


def test_every_position_is_predicted_about_as_often() -> None:
    """At the ends of a row spans are cut, and short ones a little likelier to fit: up to some percent there."""
    batch = words_of_one_token(20_000, 100)
    share = objective().corrupt(batch).positions.double().mean(0)
    assert abs(float(share.mean()) - 0.15) < 1e-3
    assert (share[10:-10] - 0.15).abs().max() < 0.01
    assert (share - 0.15).abs().max() < 0.02


def test_spans_are_drawn_anew_in_each_epoch_and_row() -> None:
    batch = words_of_one_token(2, 60)
    again = Batch(batch.tokens, batch.lengths, batch.epochs + 1, batch.rows, batch.starts, batch.marks)
    first, second = (objective().heads(each, each.real) for each in (batch, again))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], second[0])


def test_spans_hold_whole_words_and_stay_inside_documents() -> None:
    tokenizer = wordpiece()
    batch = packed(tokenizer, sentences(60, seed=2), 48)
    made = objective()
    corrupted = made.corrupt(batch)
    special = torch.tensor([tokenizer.token_to_id(name) for name in SPECIAL])
    ordinary = ~torch.isin(batch.tokens, special) & batch.real
    heads = made.heads(batch, ordinary)
    assert not (corrupted.positions & ~ordinary).any()
    document = batch.starts.cumsum(1)
    longest = 0
    for row in range(len(batch.rows)):
        size = int(batch.lengths[row])
        for word in units_by_hand(batch.marks[WORD_STARTS][row] | batch.starts[row], size):
            assert len({int(heads[row, place]) for place in word if ordinary[row, place]}) <= 1
            assert len({bool(corrupted.positions[row, place]) for place in word if ordinary[row, place]}) <= 1
        for head in heads[row, :size].unique().tolist():
            places = ((heads[row] == head) & ordinary[row]).nonzero().flatten()
            assert len(document[row, places].unique()) <= 1
            words = int(((batch.marks[WORD_STARTS] | batch.starts)[row, places]).sum())
            longest = max(longest, words)
            assert words <= 10
    assert longest > 5


def test_a_span_is_masked_replaced_or_kept_as_a_whole() -> None:
    batch = words_of_one_token(3000, 40)
    made = objective(ObjectiveConfig(kind="span", mask_token_fraction=0.6, random_token_fraction=0.2))
    corrupted = made.corrupt(batch)
    heads = made.heads(batch, batch.real)
    mask = wordpiece().token_to_id("<mask>")
    masked = torch.zeros_like(heads).scatter_add_(1, heads, (corrupted.input_ids == mask).long())
    predicted = torch.zeros_like(heads).scatter_add_(1, heads, corrupted.positions.long())
    assert ((masked == 0) | (masked == predicted)).all()
    spans = int((predicted > 0).sum())
    assert abs(int((masked > 0).sum()) / spans - 0.6) < 4 * sqrt(0.24 / spans)


def test_the_expected_share_is_the_mask_fraction() -> None:
    batch = words_of_one_token(20_000, 120, starts=(0, 17, 40, 90))
    counts = objective(ObjectiveConfig(kind="span", mask_fraction=0.3)).corrupt(batch).positions.sum(1).double()
    assert abs(float(counts.mean()) - 36) < 4 * float(counts.std()) / sqrt(len(counts))
