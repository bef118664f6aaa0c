"""A word is predicted with all its tokens or not at all, for every family of tokenizers."""

from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapt.config import ObjectiveConfig
from adapt.objective.build import make
from adapt.schema import WORD_STARTS
from tests.objective.rows import packed, units_by_hand, wrapped
from tests.samples import WORDS
from tests.tokenizers import FAMILIES, SPECIAL

texts = st.lists(
    st.lists(st.one_of(st.sampled_from(WORDS), st.text("abcdefg", min_size=1, max_size=10)), min_size=1).map(" ".join),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40)
@given(texts=texts, length=st.integers(1, 40), fraction=st.sampled_from([0.15, 0.4, 0.02]), seed=st.integers(0, 99))
def test_whole_words_and_never_special_tokens(
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
def test_the_expected_share_is_the_mask_fraction(family: str) -> None:
    tokenizer = FAMILIES[family]()
    texts = ["the gradient xyzxyz of abcdef is in a matrix with ququq and data", "small words xxyyzz and tokens qrs"]
    batch = packed(tokenizer, texts, 32, copies=4000)
    corrupted = make(ObjectiveConfig(kind="whole_word", mask_fraction=0.3), wrapped(tokenizer), 5).corrupt(batch)
    special = torch.tensor([tokenizer.token_to_id(name) for name in SPECIAL])
    ordinary = ~torch.isin(batch.tokens, special) & batch.real
    shares = corrupted.positions.sum(1).double() - 0.3 * ordinary.sum(1)
    full = shares[batch.lengths == 32]  # the last row may be one word
    assert abs(float(full.mean())) < 4 * float(full.std()) / sqrt(len(full))


def test_tokens_of_a_word_are_replaced_each_by_itself() -> None:
    """As in BERT's whole-word code: some words are shown partly masked."""
    tokenizer = FAMILIES["wordpiece"]()
    batch = packed(tokenizer, ["qxqxqx"], 16, copies=2000)
    corrupted = make(ObjectiveConfig(kind="whole_word"), wrapped(tokenizer), 0).corrupt(batch)
    masked = (corrupted.input_ids == tokenizer.token_to_id("<mask>")).sum(1)
    predicted = corrupted.positions.sum(1)
    assert predicted.unique().tolist() == [6]
    assert ((masked > 0) & (masked < predicted)).float().mean() > 0.5
    assert float(masked.double().mean() / 6) == pytest.approx(0.8, abs=0.02)


def test_draws_are_by_address() -> None:
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
