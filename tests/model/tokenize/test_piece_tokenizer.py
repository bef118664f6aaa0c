"""Tests the tokenizer that works piece by piece, with a small table of known pieces and many batches."""

import random

import pytest

from adapt.model.tokenize import piece_tokenizer
from adapt.model.tokenize.piece_tokenizer import (
    IDS,
    LONGEST,
    PieceTable,
    PieceTokenizer,
    Ragged,
    by_library,
    of_ids,
    text_batches,
)
from tests.model.tokenize.adversaries import adversaries
from tests.samples import sentences
from tests.tokenizers import roberta


def test_a_small_table_gives_the_same_tokens() -> None:
    tokenizer, draw = roberta(), random.Random(0)
    texts = [*sentences(60, seed=3), *adversaries(100, seed=3)]
    by_pieces = PieceTokenizer(tokenizer, ["blank"], most=40)
    most = 0
    for _ in range(30):
        batch = draw.choices(texts, k=8)
        assert by_pieces(batch).same(by_library(tokenizer, batch, None))
        most = max(most, len(by_pieces.table))
    assert 40 < most < 40 + 8 * 60  # the table holds at most 40 pieces plus the pieces of one batch


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_batches_have_all_texts_in_order(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(piece_tokenizer, "BATCH_CHARACTERS", size)
    for texts in ([], [""], ["abc", "", "defg", "h"], ["", ""]):
        batches = list(text_batches(texts))
        assert [text for batch in batches for text in batch] == texts
        assert batches
        assert all(sum(map(len, batch[:-1])) < size for batch in batches)


asked: list[str] = []


def letters(pieces: list[str]) -> Ragged:
    asked.extend(pieces)
    return of_ids([[ord(letter) for letter in piece] for piece in pieces])


def tokens(table: PieceTable, *pieces: str) -> list[str]:
    """Looks pieces up in the table, and decodes the token ids that the table returns for each piece."""
    numbers = table.numbers([piece.encode() for piece in pieces])
    return ["".join(map(chr, ids)) for ids in table.tokens(numbers).lists(IDS)]


def test_each_piece_is_tokenized_once_while_it_is_in_the_table() -> None:
    table = PieceTable(letters, of_ids([[], []]))
    asked.clear()
    assert tokens(table, "a", "bc", "") == ["a", "bc", ""]
    assert tokens(table, "bc", "d") == ["bc", "d"]
    assert asked == ["a", "bc", "", "d"]


def test_the_table_is_bounded_and_keeps_frequent_pieces() -> None:
    table = PieceTable(letters, of_ids([[1], [2]]), most=100)
    for number in range(200):
        pieces = ["often", *(f"{number}.{place}" for place in range(10))]
        assert tokens(table, *pieces) == pieces
        assert len(table) <= 111
        assert len(table._tokens.bounds) <= 111 + 3
        assert len(table._uses) <= 111 + 2
    assert asked.count("often") == 1


def test_a_long_piece_is_dropped() -> None:
    table = PieceTable(letters, of_ids([[1]]), most=1)
    long = "x" * (LONGEST + 1)
    assert tokens(table, long, "a") == [long, "a"]
    assert tokens(table, long, "b") == [long, "b"]
    table._forget()
    assert long.encode() not in table._numbers


def test_fixed_lists_keep_their_numbers() -> None:
    table = PieceTable(letters, of_ids([[7, 8], []]), most=1)
    for piece in "abc":
        assert tokens(table, piece, piece * 2) == [piece, piece * 2]
        assert [each.tolist() for each in table.tokens(table.numbers([])[:0]).lists(IDS)] == []
    assert table._tokens.lists(IDS)[0].tolist() == [7, 8]
