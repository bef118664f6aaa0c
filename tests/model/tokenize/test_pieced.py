"""Tokens by pieces with a small table, and many batches."""

import random

import pytest

from adapt.model.tokenize import pieced
from adapt.model.tokenize.library import by_library
from adapt.model.tokenize.pieced import PieceTokenizer, text_batches
from tests.model.tokenize.adversaries import adversaries
from tests.samples import sentences
from tests.tokenizers import roberta


def test_a_table_that_forgets_gives_the_same_tokens() -> None:
    tokenizer, draw = roberta(), random.Random(0)
    texts = [*sentences(60, seed=3), *adversaries(100, seed=3)]
    by_pieces = PieceTokenizer(tokenizer, ["blank"], most=40)
    most = 0
    for _ in range(30):
        batch = draw.choices(texts, k=8)
        assert by_pieces(batch).same(by_library(tokenizer, batch, None))
        most = max(most, len(by_pieces.table))
    assert 40 < most < 40 + 8 * 60  # what one batch brings comes on top


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_batches_hold_all_texts_in_order(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(pieced, "BATCH_CHARACTERS", size)
    for texts in ([], [""], ["abc", "", "defg", "h"], ["", ""]):
        batches = list(text_batches(texts))
        assert [text for batch in batches for text in batch] == texts
        assert batches
        assert all(sum(map(len, batch[:-1])) < size for batch in batches)
