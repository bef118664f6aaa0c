"""Repeated texts are found up to form, case and spaces, and nothing else is."""

import random
import unicodedata

from adapt.task.leaks import find_leaks, find_repeats
from adapt.task.read import Example


def example(text: str, label: str = "a", pair: str | None = None) -> Example:
    return Example("somewhere, line 1", "0", text, pair, (), (label,))


def test_form_case_and_spaces_do_not_matter() -> None:
    train = [example("Naïve  models", "a"), example("ﬁne", "b"), example("")]
    test = [
        example(unicodedata.normalize("NFD", " naïve\tMODELS\n"), "a"),
        example("fine", "a"),
        example("naive models"),
        example(""),
    ]
    leaked, counts = find_leaks({"train": train, "dev": test[:1], "test": test})
    assert leaked == {"train": [False] * 3, "dev": [True], "test": [True, True, False, False]}
    assert counts == {"dev_in_train": 1, "test_in_train": 2, "test_in_train_same_label": 1, "test_in_dev": 1}


def test_second_texts_count() -> None:
    train = [example("food", pair="good"), example("food good")]
    test = [example("Food", pair="Good"), example("food", pair="bad"), example("food"), example("", pair="food good")]
    leaked, _ = find_leaks({"train": train, "dev": [], "test": test})
    assert leaked["test"] == [True, False, False, False]


def test_any_of_the_labels_a_text_has_in_train_is_the_same_label() -> None:
    train = [example("x", "a"), example("x", "b")]
    _, counts = find_leaks({"train": train, "dev": [], "test": [example("x", label) for label in "abc"]})
    assert counts["test_in_train_same_label"] == 2


def test_counts_are_those_of_a_plain_comparison() -> None:
    draw = random.Random(0)
    drawn = {
        split: [example(draw.choice("abcdefghijkl"), draw.choice("xy")) for _ in range(8)]
        for split in ("train", "dev", "test")
    }
    _, counts = find_leaks(drawn)
    assert counts == {
        "dev_in_train": sum(any(a.text == b.text for b in drawn["train"]) for a in drawn["dev"]),
        "test_in_train": sum(any(a.text == b.text for b in drawn["train"]) for a in drawn["test"]),
        "test_in_train_same_label": sum(
            any((a.text, a.labels) == (b.text, b.labels) for b in drawn["train"]) for a in drawn["test"]
        ),
        "test_in_dev": sum(any(a.text == b.text for b in drawn["dev"]) for a in drawn["test"]),
    }
    assert all(counts.values())


def test_repeats() -> None:
    train = [example("A", "x"), example("a", "x"), example("a ", "y"), example("b", "x"), example("c"), example("c")]
    assert find_repeats(train) == {"duplicates": 2, "conflicting": 3}
