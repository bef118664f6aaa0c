"""Tests how cleaning blocks are configured, which configurations are refused, and that entities move with text."""

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapt.config import CorpusConfig
from adapt.corpus import screening
from adapt.corpus.cleaning.cleaning_blocks import Block, Drop, Edit, blocks_of, check_entities, edited, identity
from adapt.corpus.cleaning.filters import Length
from adapt.corpus.cleaning.formatters import FixUnicode
from adapt.corpus.entities import Tagged
from adapt.corpus.heldout import MEASURED, TRAINED
from adapt.corpus.screening import DUPLICATE, Sieve, Tally, clean
from adapt.support.errors import ConfigError, DataError

WRONG = [
    (["lenght"], "corpus.cleaning: there is no 'lenght'", "did you mean length?"),
    ([{"length": {"min_chars": 3}}], "unknown key min_chars in corpus.cleaning, length", "min_characters?"),
    ([{"letters": {"fraction_of_something": 3}}], "unknown key fraction_of_something", "min_fraction"),
    ([{"length": {"min_words": -1}}], "length.min_words is -1, but must be >=0", "choose a value"),
    ([{"length": {"min_words": 1.5}}], "length.min_words takes int, not 1.5", "correct the value"),
    ([{"letters": {"min_fraction": 2}}], "letters.min_fraction is 2, but must be >=0 and <=1", "choose a value"),
    ([{"letters": {"min_fraction": None}}], "letters.min_fraction has no value", "give it one"),
    ([{"pii": {"emails": "yes"}}], "pii.emails takes bool, not yes", "write true or false"),
    ([{"language": {"keep": "en"}}], "language.keep takes list, not en", "write a list: [en]"),
    ([{"language": {"keep": ["english"]}}], "language.keep names unknown languages: english", "the codes are"),
    ([{"length": {}, "letters": {}}], "corpus.cleaning: cannot read the entry", "`name` or `name: {option: value}`"),
    ([{"length": 3}], "corpus.cleaning: cannot read the entry", "`name` or `name: {option: value}`"),
]


@pytest.mark.parametrize(("cleaning", "what", "fix"), WRONG)
def test_wrong_names_and_options_are_named_with_a_fix(cleaning: list[Any], what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        blocks_of(cleaning)
    assert what in caught.value.what
    assert fix in caught.value.fix


@dataclass(frozen=True)
class NoName(Block):
    """A block without the class variable `name`."""


@dataclass(frozen=True)
class Forgetful(Block):
    """A faulty block that returns None instead of the texts that it keeps."""

    name: ClassVar[str] = "forgetful"

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        return Drop("short") if len(text) < 3 else None  # type: ignore[return-value]


def test_a_block_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="the class NoName has no attribute `name`"):
        identity([f"{__name__}:NoName"])


def test_a_block_that_returns_no_text_is_named() -> None:
    corpus = CorpusConfig(cleaning=[f"{__name__}:Forgetful"])
    assert list(clean(["ab"], corpus, Tally(), "file")) == []
    with pytest.raises(DataError, match=r"block forgetful of corpus\.cleaning returned None"):
        list(clean(["abc"], corpus, Tally(), "file"))


def test_blocks_have_the_order_of_the_configuration_and_default_options() -> None:
    blocks = blocks_of([{"length": {"min_words": 3, "max_words": None}}, "fix_unicode", {"length": None}])
    assert blocks == (Length(min_words=3), FixUnicode(), Length())
    assert identity(["fix_unicode", "letters"]) == [
        {"fix_unicode": {"uncurl_quotes": False, "packages": {"ftfy": version("ftfy")}}},
        {"letters": {"min_fraction": 0.5}},
    ]


def test_blocks_that_cannot_move_entities_are_refused_with_an_entity_field() -> None:
    check_entities(["fix_unicode"], None)
    check_entities(["boilerplate", "pii", "symbols"], "names")
    with pytest.raises(ConfigError, match=r"the block fix_unicode of corpus\.cleaning") as caught:
        check_entities(["pii", "fix_unicode"], "names")
    assert "remove fix_unicode" in caught.value.fix


@given(st.text(st.sampled_from("abc"), min_size=1, max_size=20), st.data())
def test_edits_move_entities(text: str, data: st.DataObject) -> None:
    """An entity moves with its text. An entity that an edit overlaps is removed."""
    places = st.integers(0, len(text))
    bounds = sorted(set(data.draw(st.lists(places, max_size=6))))
    cuts = list(zip(bounds[::2], bounds[1::2], strict=False))
    entities = [pair for pair in data.draw(st.lists(st.tuples(places, places), max_size=5)) if pair[0] < pair[1]]
    result = edited(Tagged.of(text, entities), [Edit(start, end, "<X>") for start, end in cuts])
    assert isinstance(result, Tagged)

    def where(place: int) -> int:
        return place + sum(3 - (end - start) for start, end in cuts if end <= place)

    free = [(s, e) for s, e in entities if all(e <= start or s >= end for start, end in cuts)]
    assert sorted(result.entities) == sorted((where(s), where(e)) for s, e in free)
    assert all(result[where(s) : where(e)] == text[s:e] for s, e in free)
    assert str(edited(text, [Edit(start, end, "<X>") for start, end in cuts])) == str(result)


def cleaned(records: list[str], cleaning: list[Any], sieve: Sieve = Sieve()) -> tuple[list[str], Tally]:  # noqa: B008
    tally = Tally()
    return list(clean(records, CorpusConfig(cleaning=cleaning), tally, "file", sieve)), tally


def test_blocks_keep_entities_at_their_text() -> None:
    record = Tagged.of("\x00 Share this\nask a@b.org about BERT \n", [(31, 35), (17, 24)])
    (text,), tally = cleaned([record], ["boilerplate", "pii", {"length": {"min_words": 1}}])
    assert text == "ask <EMAIL> about BERT"
    assert isinstance(text, Tagged)
    assert [text[start:end] for start, end in text.entities] == ["BERT"]
    assert tally.changed == {"boilerplate notices": 1, "pii email": 1}


def test_blocks_are_applied_in_order_and_count_changes_of_kept_documents() -> None:
    texts, tally = cleaned(
        ["Share this\nok", "a text that stays a@b.org", "c@d.org"],
        ["boilerplate", {"length": {"min_characters": 3}}, "pii", {"length": {"min_words": 2}}],
    )
    assert texts == ["a text that stays <EMAIL>"]
    assert tally.dropped == {"too short": 2}
    assert tally.changed == {"pii email": 1}
    assert cleaned(["Share this"], ["boilerplate"])[1].dropped == {"empty": 1}


def test_drops_of_a_sieve_do_not_shift_ordinals_of_duplicates() -> None:
    rejected: list[tuple[str, str, int, str]] = []
    sieve = Sieve(
        contaminated=lambda texts: [Drop("in evaluation set x") if "question" in text else None for text in texts],
        measured=lambda texts: [MEASURED if text.endswith("measured") else None for text in texts],
        duplicates={0: DUPLICATE, 3: TRAINED},
        reject=lambda *row: rejected.append(row),
    )
    records = ["one is a copy", "question", "", "two stays", "a\x00n exam, measured", "three has a copy", "four stays"]
    texts, tally = cleaned(records, [{"length": {"min_characters": 9}}], sieve)
    assert texts == ["two stays", "four stays"]
    assert tally.dropped == {
        "duplicate": 1,
        "in evaluation set x": 1,
        "empty": 1,
        "measured": 1,
        "trained on elsewhere": 1,
    }
    assert tally.seen == 7
    assert rejected == [
        ("duplicate", "file", 1, "one is a copy"),
        ("in evaluation set x", "file", 2, "question"),
        ("empty", "file", 3, ""),
        ("measured", "file", 5, "an exam, measured"),
        ("trained on elsewhere", "file", 6, "three has a copy"),
    ]


def drop_noise(text: str, changes: dict[str, int]) -> str | Drop:
    return Drop("duplicate") if "noise" in text else text


def test_drops_of_a_users_block_do_not_shift_ordinals_of_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block gives the reason that the stage `dedup` gives too."""
    monkeypatch.setattr(screening, "blocks_of", lambda cleaning: (drop_noise,))
    sieve = Sieve(duplicates={1: DUPLICATE})
    tally = Tally()
    first = list(clean(["noise", "zero stays"], CorpusConfig(), tally, "file", sieve))
    # the slices of an item are cleaned one after another with the same tally
    second = list(clean(["noise", "one is a copy", "two stays"], CorpusConfig(), tally, "file", sieve))
    assert [*first, *second] == ["zero stays", "two stays"]
    assert tally.dropped == {"duplicate": 3}
