"""Words and entities by tokens, for every family of tokenizers: a word is what lies between blanks, with all pieces."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Encoding

from adapt.corpus.entities import Span
from adapt.corpus.shards.marks import Marker, _entity_numbers
from adapt.schema import ENTITIES, UNIT_STARTS, WORD_STARTS
from tests.samples import WORDS
from tests.tokenizers import FAMILIES

families = pytest.mark.parametrize("family", FAMILIES)
words_of_letters = st.one_of(st.sampled_from(WORDS), st.text("abcdefgéüß", min_size=1, max_size=12))


def encoded(family: str, text: str) -> tuple[Marker, Encoding]:
    tokenizer = FAMILIES[family]()
    return Marker(tokenizer), tokenizer.encode(text)


def pieces(text: str, encoding: Encoding, starts: np.ndarray) -> list[str]:
    """The parts of the text that units cover."""
    units: list[list[Span]] = []
    for (begin, end), start in zip(encoding.offsets, starts, strict=True):
        if start:
            units.append([])
        units[-1].append((begin, end))
    return [text[unit[0][0] : max(end for _, end in unit)].strip() for unit in units]


def words_in(family: str, text: str) -> list[str]:
    """What counts as a word, without special tokens, which stand for no text."""
    marker, encoding = encoded(family, text)
    starts = marker.word_starts(text, encoding)
    special = np.array(encoding.special_tokens_mask, bool)
    assert starts[special].all()
    assert starts[0]
    return [word for word in pieces(text, encoding, starts) if word]


@families
@settings(max_examples=60)
@given(words=st.lists(words_of_letters, min_size=1, max_size=12))
def test_words_between_blanks_are_words_with_all_their_pieces(family: str, words: list[str]) -> None:
    assert words_in(family, " ".join(words)) == words


@families
def test_some_word_has_several_pieces(family: str) -> None:
    _, encoding = encoded(family, "gradient abcabcabc")
    assert len(encoding.ids) - sum(encoding.special_tokens_mask) > 3  # else the test above would show nothing


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("wordpiece", ["the", "data", "don", "'", "t", "(", "3", ".", "14", ")"]),
        ("byte-level", ["the", "data", "don", "'t", "(", "3", ".", "14", ")"]),
        ("roberta", ["the", "data", "don", "'t", "(", "3", ".", "14", ")"]),
        ("unigram", ["the", "data", "don't", "(3.14)"]),
        ("wordless", ["the", "data", "don't", "(3.14)"]),
    ],
)
def test_several_blanks_and_punctuation(family: str, expected: list[str]) -> None:
    assert words_in(family, "the   data\n\tdon't  (3.14)") == expected


@families
def test_scripts_without_blanks_are_split_at_characters(family: str) -> None:
    """Else a whole Chinese sentence would be one word."""
    assert words_in(family, "the 日本語 data") == ["the", "日", "本", "語", "data"]


@families
def test_a_special_token_in_the_text_stands_alone(family: str) -> None:
    marker, encoding = encoded(family, "abc<mask>def ghi")
    starts, place = marker.word_starts("abc<mask>def ghi", encoding), encoding.tokens.index("<mask>")
    assert starts[place]
    assert starts[place + 1]


@families
def test_an_empty_text(family: str) -> None:
    marker, encoding = encoded(family, "")
    assert all(column.all() == (name != ENTITIES) for name, column in marker.marks("", encoding, []).items())
    assert {len(column) for column in marker.marks("", encoding, []).values()} == {len(encoding.ids)}


@families
@settings(max_examples=60)
@given(st.data())
def test_entities_are_units_and_so_are_the_words_around(family: str, data: st.DataObject) -> None:
    """Entities of whole words: units are then the entities and the other words."""
    words = data.draw(st.lists(words_of_letters, min_size=1, max_size=12))
    ends = sorted(data.draw(st.sets(st.integers(0, len(words)), max_size=6)))
    runs = [(first, last) for first, last in zip(ends[::2], ends[1::2], strict=False)]
    text = " ".join(words)
    begins = np.cumsum([0, *(len(word) + 1 for word in words)])
    entities = [(int(begins[first]), int(begins[last]) - 1) for first, last in runs]
    marker, encoding = encoded(family, text)
    marks = marker.marks(text, encoding, data.draw(st.permutations(entities)))

    expected: dict[int, str] = {first: " ".join(words[first:last]) for first, last in runs}
    inside = {word for first, last in runs for word in range(first, last)}
    expected |= {number: word for number, word in enumerate(words) if number not in inside}
    units = [unit for unit in pieces(text, encoding, marks[UNIT_STARTS]) if unit]
    assert units == [unit for _, unit in sorted(expected.items())]
    assert not (marks[ENTITIES] & np.array(encoding.special_tokens_mask, bool)).any()
    for (begin, end), marked in zip(encoding.offsets, marks[ENTITIES], strict=True):
        if begin < end:
            assert marked == any(first < end and last > begin for first, last in entities)
    assert np.array_equal(marks[WORD_STARTS], marker.word_starts(text, encoding))


def test_an_entity_that_ends_inside_a_word_splits_it() -> None:
    text = "IL-2-mediated"
    marker, encoding = encoded("wordless", text)
    marks = marker.marks(text, encoding, [(0, 4)])
    assert pieces(text, encoding, marks[UNIT_STARTS])[1:] == ["IL-2", "-mediated"]


def test_neighbours_are_two_and_of_overlapping_entities_one_counts() -> None:
    text = "abcdefghij"
    _, encoding = encoded("byte-level", text)
    numbers = _entity_numbers(encoding, [(2, 4), (4, 6), (5, 8), (2, 3)])
    by_character = {begin: number for (begin, end), number in zip(encoding.offsets, numbers, strict=True) if end}
    assert by_character[0] == -1
    assert by_character[2] == 0
    assert [by_character[place] for place in (4, 5)] == [1, 1]
    assert by_character[9] == -1
