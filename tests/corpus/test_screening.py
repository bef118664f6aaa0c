"""Tests that each document is kept or dropped with a reason, and that every record is counted."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapt.config import CorpusConfig
from adapt.corpus import screening
from adapt.corpus.cleaning.cleaning_blocks import Drop
from adapt.corpus.decontamination import build_index
from adapt.corpus.files.formats import Bad
from adapt.corpus.files.manifest import Slice
from adapt.corpus.screening import ITEM_IDS, Sieve, Tally, clean, item_texts
from adapt.support.errors import DataError

ANYTHING = CorpusConfig(cleaning=[])


def cleaned(records: list[str], corpus: CorpusConfig = ANYTHING) -> tuple[list[str], Tally]:
    tally = Tally()
    return list(clean(records, corpus, tally, "file")), tally


def test_every_record_is_counted_once_by_reason() -> None:
    records = [
        "A sentence that is long enough.",
        Bad("malformed JSON"),
        "short",
        "",
        " \n\t ",
        "1234567890 1234567890 1234567890",
        Bad("no text"),
        "Another sentence that is long enough.",
        Bad("malformed JSON"),
        "\x00\x07",
    ]
    texts, tally = cleaned(records, CorpusConfig())
    assert texts == [records[0], records[7]]
    assert tally.kept == 2
    assert tally.bad == {"malformed JSON": 2, "no text": 1}
    assert tally.dropped == {"too short": 1, "empty": 3, "too few letters": 1}
    assert tally.first_bad == {"malformed JSON": "file, record 2", "no text": "file, record 7"}
    assert tally.seen == len(records)


@given(st.lists(st.one_of(st.text(max_size=60), st.sampled_from(["no text", "malformed JSON"]).map(Bad))))
def test_kept_dropped_and_bad_records_sum_up_to_all(records: list[str]) -> None:
    texts, tally = cleaned(records, CorpusConfig())
    bad = [record for record in records if isinstance(record, Bad)]
    assert tally.kept == len(texts)
    assert tally.bad == Counter(bad)
    assert tally.kept + sum(tally.dropped.values()) + len(bad) == len(records) == tally.seen
    originals = iter(records)
    for text in texts:  # the kept texts are in order, without control characters and outer spaces
        assert any(is_what_remains(text, original) for original in originals)


def is_what_remains(text: str, original: str) -> bool:
    broken = original.replace("\v", "\n").replace("\f", "\n")
    visible = "".join(c for c in broken if c in "\t\n\r" or not (ord(c) < 32 or ord(c) == 127))
    return text == "".join(c for c in visible if not 0xD800 <= ord(c) < 0xE000).strip()


def test_only_control_characters_are_removed() -> None:
    texts, _ = cleaned(["\x00a\x1b[1m b\x7f\tc\r\n  d\x08 é — 東京 \u200d \U0001f600\n"])
    assert texts == ["a[1m b\tc\r\n  d é — 東京 \u200d \U0001f600"]


@pytest.mark.parametrize("rest", ["", "é"])
def test_a_form_feed_becomes_a_line_break(rest: str) -> None:
    """A form feed becomes a line break and is not removed, because in text from PDF files it may separate two words."""
    assert cleaned([f"of a\fpage\vline{rest}"])[0] == [f"of a\npage\nline{rest}"]


def hidden_by_entities(words: list[str]) -> str:
    return " ".join(f"{word[0]}&#{ord(word[1])};{word[2:]}" for word in words)


def hidden_by_boilerplate(words: list[str]) -> str:
    return "\n".join(f"{word}\nAll rights reserved." for word in words)


@pytest.mark.parametrize(
    ("hidden", "blocks"), [(hidden_by_entities, ["fix_unicode"]), (hidden_by_boilerplate, ["boilerplate"])]
)
def test_evaluation_texts_that_appear_only_after_cleaning_are_found(
    hidden: Callable[[list[str]], str], blocks: list[str]
) -> None:
    """Documents are checked for evaluation texts again after cleaning, because the cleaned text is trained on.

    In these records, HTML entities or boilerplate lines hide the evaluation text before cleaning.
    """
    words = [f"word{number}" for number in range(40)]
    index, tally = build_index([("exam", [" ".join(words)])], 13, 0.5), Tally()
    record = hidden(words)
    assert index(record) is None
    corpus = CorpusConfig(cleaning=blocks)
    assert " ".join(" ".join(clean([record], corpus, Tally(), "file")).split()) == " ".join(words)
    assert list(clean([record], corpus, tally, "file", Sieve(index.many))) == []
    assert tally.dropped == {"in evaluation set exam": 1}


def test_surrogates_are_removed() -> None:
    """Unpaired UTF-16 surrogates are removed. JSON can contain them, but UTF-8 files and tokenizers cannot."""
    cut, whole = json.loads(r'["cut \ud83d here", "whole \ud83d\ude00 here"]')
    texts, tally = cleaned([cut, whole])
    assert texts == ["cut  here", "whole \U0001f600 here"]
    assert [text.encode() for text in texts]
    assert tally.kept == 2


@pytest.mark.parametrize(("length", "kept"), [(19, 0), (20, 1), (21, 1)])
def test_documents_below_the_smallest_length_are_dropped(length: int, kept: int) -> None:
    assert cleaned(["x" * length], CorpusConfig(cleaning=[{"length": {"min_characters": 20}}]))[1].kept == kept
    assert (
        cleaned(["\x00  " + "x" * length + " \n"], CorpusConfig(cleaning=[{"length": {"min_characters": 20}}]))[1].kept
        == kept
    )


@pytest.mark.parametrize(
    ("text", "fraction"),
    [("ab12", 0.5), ("a b 1 2", 0.5), ("abc_", 0.75), ("éß東", 1.0), ("((a))", 0.2), ("a\n\n\n\t    b", 1.0)],
)
def test_documents_below_the_smallest_share_of_letters_are_dropped(text: str, fraction: float) -> None:
    """A text whose share of letters is `fraction` passes the limit `fraction`, but not a limit that is higher by .01.

    Spaces and control characters are not counted.
    """
    assert cleaned([text], CorpusConfig(cleaning=[{"letters": {"min_fraction": fraction}}]))[1].kept == 1
    if fraction < 1:
        _, tally = cleaned([text], CorpusConfig(cleaning=[{"letters": {"min_fraction": fraction + 0.01}}]))
        assert tally.dropped == {"too few letters": 1}


@pytest.mark.parametrize(
    "text",
    [
        "ကျွန်ုပ်တို့သည် မြန်မာနိုင်ငံတွင် နေထိုင်ကြပါသည်။",
        "यह हिन्दी में लिखा हुआ एक वाक्य है।",
        "ខ្ញុំចូលចិត្តអានសៀវភៅនៅក្នុងបណ្ណាល័យ",
        "Это предложение написано по-русски.",
        "これは日本語で書かれた文です。",
        "هذه جملة مكتوبة باللغة العربية.",
    ],
    ids=["Burmese", "Hindi", "Khmer", "Russian", "Japanese", "Arabic"],
)
def test_ordinary_text_of_many_scripts_is_kept(text: str) -> None:
    assert (
        cleaned(
            [text], CorpusConfig(cleaning=[{"length": {"min_characters": 10}}, {"letters": {"min_fraction": 0.5}}])
        )[1].dropped
        == {}
    )


def test_tallies_are_added_and_keep_the_first_bad_record() -> None:
    _, first = cleaned([Bad("a"), "text", ""])
    second = Tally()
    list(clean(["x", Bad("b"), Bad("a"), ""], ANYTHING, second, "later"))
    first.add(second)
    assert first == Tally(
        kept=2, bad={"a": 2, "b": 1}, dropped={"empty": 2}, first_bad={"a": "file, record 1", "b": "later, record 2"}
    )
    assert first.seen == 7


@given(st.text(st.characters(max_codepoint=0x130), max_size=60))
def test_control_characters_are_removed_equally_in_ascii_and_other_text(text: str):
    """Compares the fast implementation for ASCII texts with the general one, which is used if "é" is appended."""
    (ascii,), (other,) = cleaned([f"x{text}x"])[0], cleaned([f"x{text}é"])[0]
    assert other == ascii[:-1] + "é"


MODULES = ['"""First of all, a module."""\ndef f():\n    """x"""\n', "y = 1\n", '"""Third of all, a module."""\n']


@pytest.fixture
def sources(tmp_path: Path) -> str:
    """Writes three modules, and returns an item (as JSON) that has one slice per module.

    The first module has two docstrings, the second of which is too short. The second module has no docstring.
    """
    slices = []
    for number, text in enumerate(MODULES):
        (tmp_path / f"{number}.py").write_text(text)
        slices.append(asdict(Slice(str(tmp_path / f"{number}.py"))))
    return json.dumps(slices)


CORPUS = CorpusConfig(source="docstrings", cleaning=[{"length": {"min_characters": 5}}])


def test_records_are_counted_over_all_slices_of_an_item(sources: str) -> None:
    tally = Tally()
    found = list(item_texts(3, sources, CORPUS, tally))
    assert found == [(3 * ITEM_IDS, "First of all, a module."), (3 * ITEM_IDS + 2, "Third of all, a module.")]
    assert (tally.kept, tally.seen) == (2, 3)


def test_an_item_with_more_records_than_ids_is_refused(sources: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "ITEM_IDS", 2)
    with pytest.raises(DataError, match=r"2\.py has more than 2 records"):
        list(item_texts(0, sources, CORPUS, Tally()))


COPY = Drop("copy")


@pytest.mark.parametrize(
    "sieve",
    [
        Sieve(duplicates={1: COPY}),
        Sieve(measured=lambda texts: [COPY if "second" in text else None for text in texts]),
        # finds the text only after the block has changed it
        Sieve(contaminated=lambda texts: [COPY if "second" in text and "@" not in text else None for text in texts]),
    ],
    ids=["duplicate", "measured", "contaminated"],
)
def test_changes_are_not_counted_in_documents_that_are_dropped_later(sieve: Sieve) -> None:
    tally = Tally()
    records = ["write to a@b.com first", "write to a@b.com second"]
    assert len(list(clean(records, CorpusConfig(cleaning=["pii"]), tally, "file", sieve))) == 1
    assert (tally.kept, tally.dropped) == (1, {"copy": 1})
    assert tally.changed == {"pii email": 1}
