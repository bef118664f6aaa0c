"""Tests that markup that the pool lacks is found, reported and removed, and that symbols of the pool remain."""

import pytest

from adapt.select.markup import foreign_marks, markup_warnings, without_marks

PLAIN = [f"the layer {number} inhibits, as known (Smith, 1997), the loss [3] of a model" for number in range(40)]


@pytest.mark.parametrize(
    ("left", "right"),
    [("[[", "]]"), ("<<", ">>"), ("<e1>", "</e1>"), ("[E1]", "[/E1]"), ("@GENE$", "@GENE$"), ("**", "**"), ("|", "|")],
)
def test_signs_around_entities_are_removed(left: str, right: str) -> None:
    target = [text.replace("layer", f"{left} layer {right}") for text in PLAIN]
    marks = foreign_marks(target, PLAIN)
    assert {mark.text for mark in marks} == {left, right}
    assert all(mark.share == 1 and not mark.is_word and mark.pool_share == 0 for mark in marks)
    assert without_marks(target, marks) == PLAIN
    (line,) = markup_warnings(marks)
    assert "the target has markup that the pool lacks" in line
    assert f"{left} (100% of its texts)" in line


def test_tags_are_recognised_by_their_names() -> None:
    target = [f'{text} <a href="{number}">here</a>' for number, text in enumerate(PLAIN)]
    marks = [mark for mark in foreign_marks(target, PLAIN) if not mark.is_word]
    assert without_marks(target, marks) == [f"{text} here" for text in PLAIN]


def test_signs_that_the_pool_has_too_stay() -> None:
    target = [text.replace("layer", "[[ layer ]]") for text in PLAIN]
    assert foreign_marks(target, target[:20] + PLAIN) == []
    assert foreign_marks(PLAIN, PLAIN) == []
    assert without_marks(target, []) == target


def test_rare_signs_stay() -> None:
    target = [*PLAIN, "one << text >> alone"]
    assert foreign_marks(target, PLAIN) == []


def test_a_text_of_only_signs_is_unchanged() -> None:
    target = ["[[ a ]]", "[[ b ]]", "[["]
    assert without_marks(target, foreign_marks(target, PLAIN)) == ["a", "b", "[["]


def test_words_of_most_texts_are_reported_and_kept() -> None:
    target = [f"STARTMARK {text}" for text in PLAIN]
    (mark,) = foreign_marks(target, PLAIN)
    assert (mark.text, mark.is_word) == ("startmark", True)
    assert without_marks(target, [mark]) == target
    (line,) = markup_warnings([mark])
    assert "startmark (100% of its texts)" in line
