"""What is remembered of pieces, and that it is bounded."""

from adapt.model.tokenize.library import of_ids
from adapt.model.tokenize.ragged import IDS, Ragged
from adapt.model.tokenize.table import LONGEST, PieceTable

asked: list[str] = []


def letters(pieces: list[str]) -> Ragged:
    asked.extend(pieces)
    return of_ids([[ord(letter) for letter in piece] for piece in pieces])


def tokens(table: PieceTable, *pieces: str) -> list[str]:
    """Pieces, as the table's tokens say them."""
    numbers = table.numbers([piece.encode() for piece in pieces])
    return ["".join(map(chr, ids)) for ids in table.tokens(numbers).lists(IDS)]


def test_each_piece_is_asked_for_once_while_it_is_kept() -> None:
    table = PieceTable(letters, of_ids([[], []]))
    asked.clear()
    assert tokens(table, "a", "bc", "") == ["a", "bc", ""]
    assert tokens(table, "bc", "d") == ["bc", "d"]
    assert asked == ["a", "bc", "", "d"]


def test_memory_is_bounded_and_what_comes_often_stays() -> None:
    table = PieceTable(letters, of_ids([[1], [2]]), most=100)
    for number in range(200):
        pieces = ["often", *(f"{number}.{place}" for place in range(10))]
        assert tokens(table, *pieces) == pieces
        assert len(table) <= 111
        assert len(table._tokens.bounds) <= 111 + 3
        assert len(table._uses) <= 111 + 2
    assert asked.count("often") == 1


def test_a_long_piece_is_not_kept() -> None:
    table = PieceTable(letters, of_ids([[1]]), most=1)
    long = "x" * (LONGEST + 1)
    assert tokens(table, long, "a") == [long, "a"]
    assert tokens(table, long, "b") == [long, "b"]
    table._forget()
    assert long.encode() not in table._numbers


def test_lists_that_are_fixed_keep_their_numbers() -> None:
    table = PieceTable(letters, of_ids([[7, 8], []]), most=1)
    for piece in "abc":
        assert tokens(table, piece, piece * 2) == [piece, piece * 2]
        assert [each.tolist() for each in table.tokens(table.numbers([])[:0]).lists(IDS)] == []
    assert table._tokens.lists(IDS)[0].tolist() == [7, 8]
