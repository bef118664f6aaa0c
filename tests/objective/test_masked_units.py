"""Tests that words, entities and spans are predicted as a whole, with every family of tokenizers."""

from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from adapt.config import ObjectiveConfig
from adapt.corpus.entities import Span
from adapt.objective.masking import SpanMasking, length_distribution, make
from adapt.objective.objective import Batch, Corrupted
from adapt.support.schema import ENTITIES, UNIT_STARTS, WORD_STARTS
from tests.objective.rows import packed, units_by_hand, wrapped
from tests.samples import WORDS, sentences
from tests.tokenizers import FAMILIES, SPECIAL, wordpiece

texts = st.lists(
    st.lists(st.one_of(st.sampled_from(WORDS), st.text("abcdefg", min_size=1, max_size=10)), min_size=1).map(" ".join),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40)
@given(texts=texts, length=st.integers(1, 40), fraction=st.sampled_from([0.15, 0.4, 0.02]), seed=st.integers(0, 99))
def test_whole_words_are_predicted_and_never_special_tokens(
    family: str, texts: list[str], length: int, fraction: float, seed: int
) -> None:
    tokenizer = FAMILIES[family]()
    batch = packed(tokenizer, texts, length)
    config = ObjectiveConfig(kind="whole_word", mask_fraction=fraction)
    corrupted = make(config, wrapped(tokenizer), seed).corrupt(batch)
    special = torch.tensor([tokenizer.token_to_id(name) for name in SPECIAL])
    for row in range(len(batch.rows)):
        tokens, size = batch.tokens[row], int(batch.lengths[row])
        predicted = corrupted.positions[row]
        assert predicted.any()
        assert not predicted[size:].any()
        ordinary = ~torch.isin(tokens, special)
        if not ordinary[:size].any():
            continue
        assert not (predicted & ~ordinary).any()
        for unit in units_by_hand(batch.marks[WORD_STARTS][row] | batch.starts[row], size):
            assert len({bool(predicted[place]) for place in unit if ordinary[place]}) <= 1
    changed = corrupted.input_ids != batch.tokens
    assert not (changed & ~corrupted.positions).any()
    assert torch.equal(corrupted.targets, batch.tokens[corrupted.positions])


@pytest.mark.parametrize("family", ["wordpiece", "byte-level", "unigram"])
def test_the_expected_share_of_words_is_the_mask_fraction(family: str) -> None:
    tokenizer = FAMILIES[family]()
    texts = ["the gradient xyzxyz of abcdef is in a matrix with ququq and data", "small words xxyyzz and tokens qrs"]
    batch = packed(tokenizer, texts, 32, copies=4000)
    corrupted = make(ObjectiveConfig(kind="whole_word", mask_fraction=0.3), wrapped(tokenizer), 5).corrupt(batch)
    special = torch.tensor([tokenizer.token_to_id(name) for name in SPECIAL])
    ordinary = ~torch.isin(batch.tokens, special) & batch.real
    shares = corrupted.positions.sum(1).double() - 0.3 * ordinary.sum(1)
    full = shares[batch.lengths == 32]  # the last row may hold a single word
    assert abs(float(full.mean())) < 4 * float(full.std()) / sqrt(len(full))


def test_tokens_of_a_word_are_replaced_independently() -> None:
    """Checks that a predicted word can be partly masked, as in BERT's code, which replaces each token independently."""
    tokenizer = FAMILIES["wordpiece"]()
    batch = packed(tokenizer, ["qxqxqx"], 16, copies=2000)
    corrupted = make(ObjectiveConfig(kind="whole_word"), wrapped(tokenizer), 0).corrupt(batch)
    masked = (corrupted.input_ids == tokenizer.token_to_id("<mask>")).sum(1)
    predicted = corrupted.positions.sum(1)
    assert predicted.unique().tolist() == [6]
    assert ((masked > 0) & (masked < predicted)).float().mean() > 0.5
    assert float(masked.double().mean() / 6) == pytest.approx(0.8, abs=0.02)


def test_draws_do_not_depend_on_padding() -> None:
    tokenizer = FAMILIES["byte-level"]()
    objective = make(ObjectiveConfig(kind="whole_word"), wrapped(tokenizer), 0)
    whole = packed(tokenizer, ["the gradient of abcabc is in a matrix and more words " * 3], 24)
    wide = packed(tokenizer, ["the gradient of abcabc is in a matrix and more words " * 3], 24)
    pad = torch.nn.functional.pad
    wide = type(wide)(
        pad(wide.tokens, (0, 9)), wide.lengths, wide.epochs, wide.rows, pad(wide.starts, (0, 9)),
        {name: pad(mark, (0, 9)) for name, mark in wide.marks.items()},
    )  # fmt: skip
    assert torch.equal(objective.corrupt(whole).input_ids, objective.corrupt(wide).input_ids[:, :24])
    assert torch.equal(objective.corrupt(whole).positions, objective.corrupt(wide).positions[:, :24])


TEXT = "the gradient of state vector xyzxyz is in a matrix with attention layer and small data words"
ENTITY_WORDS = ["state vector xyzxyz", "attention layer"]
SPANS = [(TEXT.index(words), TEXT.index(words) + len(words)) for words in ENTITY_WORDS]


def corrupted_rows(entities: list[Span]) -> tuple[Batch, torch.Tensor, Corrupted]:
    tokenizer = FAMILIES["unigram"]()
    batch = packed(tokenizer, [TEXT], 64, [entities], copies=6000)
    config = ObjectiveConfig(kind="entity", mask_fraction=0.4, entity_field="e")
    special = torch.tensor([tokenizer.token_to_id(name) for name in SPECIAL])
    ordinary = ~torch.isin(batch.tokens, special) & batch.real
    return batch, ordinary, make(config, wrapped(tokenizer), 3).corrupt(batch)


@pytest.mark.parametrize("family", FAMILIES)
def test_entities_and_words_are_predicted_whole(family: str) -> None:
    tokenizer = FAMILIES[family]()
    batch = packed(tokenizer, [TEXT] * 30, 25, [SPANS] * 30)
    config = ObjectiveConfig(kind="entity", mask_fraction=0.4, entity_field="e")
    corrupted = make(config, wrapped(tokenizer), 0).corrupt(batch)
    special = torch.tensor([tokenizer.token_to_id(name) for name in SPECIAL])
    ordinary = ~torch.isin(batch.tokens, special) & batch.real
    assert not (corrupted.positions & ~ordinary).any()
    assert (corrupted.positions & batch.marks[ENTITIES]).any()
    for row in range(len(batch.rows)):
        assert corrupted.positions[row].any()
        for unit in units_by_hand(batch.marks[UNIT_STARTS][row] | batch.starts[row], int(batch.lengths[row])):
            assert len({bool(corrupted.positions[row, place]) for place in unit if ordinary[row, place]}) <= 1


def test_the_share_of_entities_is_met_on_average() -> None:
    batch, ordinary, corrupted = corrupted_rows(SPANS)
    inside = batch.marks[ENTITIES]
    wanted = 0.4 * int(ordinary[0].sum())
    from_entities = min(0.5 * wanted, int((inside & ordinary)[0].sum()))
    means = [float((corrupted.positions & part).sum(1).double().mean()) for part in (inside, ~inside)]
    assert means == pytest.approx([from_entities, wanted - from_entities], abs=0.12)


def test_words_replace_missing_entities() -> None:
    _, ordinary, corrupted = corrupted_rows([])
    assert float(corrupted.positions.sum(1).double().mean()) == pytest.approx(0.4 * int(ordinary[0].sum()), abs=0.1)


def test_entities_replace_missing_words() -> None:
    words = [(TEXT.index(f" {word} ") + 1, TEXT.index(f" {word} ") + 1 + len(word)) for word in TEXT.split()[1:-1]]
    batch, ordinary, corrupted = corrupted_rows([(0, 3), *words, (len(TEXT) - 5, len(TEXT))])
    assert torch.equal(batch.marks[ENTITIES] & batch.real, ordinary)
    assert float(corrupted.positions.sum(1).double().mean()) == pytest.approx(0.4 * int(ordinary[0].sum()), abs=0.1)


CONFIG = ObjectiveConfig(kind="span")


def objective(config: ObjectiveConfig = CONFIG, seed: int = 0) -> SpanMasking:
    made = make(config, wrapped(wordpiece()), seed)
    assert isinstance(made, SpanMasking)
    return made


def words_of_one_token(rows: int, length: int, starts: tuple[int, ...] = (0,)) -> Batch:
    """Returns rows of ordinary tokens, in which each token is a word. Documents start at the positions `starts`."""
    numbers, every = torch.arange(rows), torch.ones(rows, length, dtype=torch.bool)
    begins = torch.zeros_like(every)
    begins[:, starts] = True
    tokens = torch.full((rows, length), 40)
    return Batch(tokens, torch.full((rows,), length), numbers * 0, numbers, begins, {WORD_STARTS: every})


def test_span_lengths_have_spanberts_mean() -> None:
    chances = length_distribution(0.2, 10)
    assert float((chances * torch.arange(1, 11)).sum()) == pytest.approx(3.8, abs=0.01)
    for n in range(10):
        assert float(chances[n]) == pytest.approx(0.8**n * 0.2 / (1 - 0.8**10))


def test_spans_have_the_lengths_of_the_truncated_geometric_distribution() -> None:
    """Checks the lengths of the first four spans of each row.

    A row has room for five spans of the largest length. Later spans are not counted, because the end of the row cuts
    long spans.
    """
    batch = words_of_one_token(2000, 50)
    heads = objective().heads(batch, batch.real)
    starts = heads == torch.arange(heads.shape[1])
    found = torch.zeros(10, dtype=torch.int64)
    for row in starts:
        found += torch.bincount(row.nonzero().flatten().diff()[:4] - 1, minlength=10)
    expected = length_distribution(0.2, 10) * int(found.sum())
    assert int(found.sum()) == 4 * 2000
    assert chisquare(found.numpy(), expected.numpy()).pvalue > 0.01


def test_every_position_is_predicted_about_as_often() -> None:
    """Checks the share of predictions at each position, which is 15% on average.

    The share may differ by up to 2 percentage points near the ends of a row, where spans are cut and short spans fit
    better.
    """
    batch = words_of_one_token(20_000, 100)
    share = objective().corrupt(batch).positions.double().mean(0)
    assert abs(float(share.mean()) - 0.15) < 1e-3
    assert (share[10:-10] - 0.15).abs().max() < 0.01
    assert (share - 0.15).abs().max() < 0.02


def test_each_epoch_and_row_has_new_spans() -> None:
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


def test_a_span_is_masked_replaced_or_unchanged_as_a_whole() -> None:
    batch = words_of_one_token(3000, 40)
    made = objective()
    corrupted = made.corrupt(batch)
    heads = made.heads(batch, batch.real)
    mask = wordpiece().token_to_id("<mask>")
    masked = torch.zeros_like(heads).scatter_add_(1, heads, (corrupted.input_ids == mask).long())
    predicted = torch.zeros_like(heads).scatter_add_(1, heads, corrupted.positions.long())
    assert ((masked == 0) | (masked == predicted)).all()
    spans = int((predicted > 0).sum())
    assert abs(int((masked > 0).sum()) / spans - 0.8) < 4 * sqrt(0.16 / spans)


def test_the_expected_share_of_spans_is_the_mask_fraction() -> None:
    batch = words_of_one_token(20_000, 120, starts=(0, 17, 40, 90))
    counts = objective(ObjectiveConfig(kind="span", mask_fraction=0.3)).corrupt(batch).positions.sum(1).double()
    assert abs(float(counts.mean()) - 36) < 4 * float(counts.std()) / sqrt(len(counts))
