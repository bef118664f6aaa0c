"""Compares the statistics of a domain's words with counts by hand."""

import pytest

from adapt.model.size import ModelSize
from adapt.train.capacity.flops import Workload, forward_flops
from adapt.vocabulary.analysis import analyze_words, broken_words, elbow, sizes
from adapt.vocabulary.word_reader import WordReader, count_words
from tests.tokenizers import byte_level, wordpiece

SIZE = ModelSize(1, 1000, 64 * 100, 2, 64, 64, 2, 128, 100, False, "gelu", False, 0.1, 6400)
WORK = Workload(16, 0.15)


def names(backend):  # type: ignore[no-untyped-def]
    return {number: piece for piece, number in backend.get_vocab().items()}


def test_figures_of_a_domain() -> None:
    backend = wordpiece()
    reader = WordReader(backend)
    texts = ["value value", "value zzqqk, zzqqk"]
    whole, broken = reader.pieces("value"), reader.pieces("zzqqk")
    assert len(whole) == 1 < len(broken)
    found = analyze_words(texts, reader, names(backend), 2, SIZE, WORK)
    assert found
    assert (found.words, found.distinct, found.pieces) == (5, 2, 3 + 2 * len(broken))
    assert found.bytes == sum(map(len, texts))
    assert found.fertility == pytest.approx((3 + 2 * len(broken)) / 5)
    assert found.fragment_score == pytest.approx((1 + len(broken)) / 2)
    assert (found.broken_share, found.unknown_share, found.byte_share) == (2 / 5, 0, 0)
    assert (found.candidates, found.elbow, found.length_overhead) == (1, 1, None)
    assert [each.word for each in found.worst] == ["zzqqk"]
    none, one = found.curve
    assert (none.tokens, none.length_saved, none.compute_saved) == (0, 0, 0)
    assert one.fertility == 1
    assert one.length_saved == pytest.approx(1 - 5 / found.pieces)
    # One new token adds 64 weights to the output head, which is computed for the 15% masked tokens.
    # Each weight takes two FLOPs.
    before, after = forward_flops(SIZE, WORK), forward_flops(SIZE, WORK) + 2 * 64 * 0.15
    assert one.compute_saved == pytest.approx(1 - 5 * after / (found.pieces * before))


def test_text_is_longer_than_general_text_by_pieces_a_byte() -> None:
    backend = wordpiece()
    reader = WordReader(backend)
    general = analyze_words(["value value"], reader, names(backend), 1)
    domain = analyze_words(["zzqqk zzqqk"], reader, names(backend), 1, general=general)
    assert domain
    pieces = 2 * len(reader.pieces("zzqqk"))
    assert domain.length_overhead == pytest.approx((pieces / 11) / (2 / 11) - 1)


def test_characters_that_are_broken_into_bytes_are_counted() -> None:
    backend = byte_level()
    found = analyze_words(["치료 치료"], WordReader(backend), names(backend), 1)
    assert found
    assert found.byte_share > 0.5
    assert found.unknown_share == 0


def test_texts_without_words_have_no_figures() -> None:
    assert analyze_words(["", "?! ..."], WordReader(wordpiece()), {}, 1) is None


def test_words_that_save_most_come_first_and_rare_ones_are_left_out() -> None:
    words = count_words({"zzqqk": 3, "zq": 9, "qqqqqqqq": 1, "value": 50}, WordReader(wordpiece()))
    assert [word.word for word in broken_words(words, 2)] == ["zzqqk", "zq"]


@pytest.mark.parametrize(
    ("saved", "best"), [([], 0), ([5], 1), ([10, 10, 10], 1), ([100, 50, 2, 1, 1], 2), ([9, 8, 7, 1, 1, 1], 3)]
)
def test_the_elbow_is_where_a_further_token_saves_less_than_the_mean(saved: list[int], best: int) -> None:
    assert elbow(saved) == best
    if saved and len(set(saved)) > 1:
        assert saved[best - 1] >= sum(saved) / len(saved) > saved[best]


def test_the_numbers_of_a_curve() -> None:
    assert sizes(0) == [0]
    assert sizes(60) == [0, 10, 20, 50, 60]
