"""Tests that held-out documents, whose loss is measured, are recognised in any Unicode form and in any file."""

import random
import unicodedata
from collections.abc import Callable
from hashlib import blake2b
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from adapt.corpus.heldout import MEASURED, Measured, _keys, key_of
from adapt.corpus.token_shards import write_shard
from adapt.support.errors import DataError
from adapt.support.schema import HELDOUT_GLOB
from tests.samples import is_heldout

FORMS: dict[str, Callable[[str], str]] = {
    "case": str.upper,
    "spaces": lambda text: f"  {text} ".replace(" ", "\n "),
    "Unicode form": lambda text: unicodedata.normalize("NFD", text),
    "wide letters": lambda text: "".join(chr(ord(c) + 0xFEE0) if c.isascii() and c.isalnum() else c for c in text),
}


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
def test_held_out_share_of_documents_matches_the_fraction(fraction: float) -> None:
    draw = random.Random(0)
    texts = {f"document {draw.random()}" for _ in range(20_000)}
    held = sum(is_heldout(text, fraction) for text in texts)
    expected = fraction * len(texts)
    # the bound is 4 standard deviations of a binomial distribution
    assert abs(held - expected) < 4 * sqrt(expected * (1 - fraction))


def test_fractions_0_and_1_hold_out_none_and_all() -> None:
    texts = [f"document {number}" for number in range(2000)]
    assert not any(is_heldout(text, 0.0) for text in texts)
    assert all(is_heldout(text, 1.0) for text in texts)


def test_a_larger_share_contains_the_smaller() -> None:
    texts = [f"document {number}" for number in range(5000)]
    small, large = ({text for text in texts if is_heldout(text, fraction)} for fraction in (0.05, 0.2))
    assert small < large


def test_held_out_documents_do_not_change_between_versions() -> None:
    """The held-out documents of five fixed texts never change.

    If a new version held out other documents, it would train on text that earlier versions held out.
    """
    texts = ["the first document", "the second document", "the third document", "the 4th document", "été 東京"]
    expected = [True, False, False, False, True]
    assert [is_heldout(text, 0.5) for text in texts] == expected
    assert [is_heldout(text, 0.5) for text in reversed(texts)] == expected[::-1]


@pytest.mark.parametrize("form", FORMS)
def test_copies_in_another_form_fall_on_the_same_side(form: str) -> None:
    texts = [f"The Été of document {number}, whole" for number in range(2000)]
    copies = [FORMS[form](text) for text in texts]
    assert all(text != copy for text, copy in zip(texts, copies, strict=True))
    assert [is_heldout(text, 0.1) for text in texts] == [is_heldout(copy, 0.1) for copy in copies]
    assert 100 < sum(is_heldout(text, 0.1) for text in texts) < 300


def test_a_key_is_the_first_8_bytes_of_the_digest_of_the_normalised_text() -> None:
    digest = blake2b("the ete of ﬁve".replace("ete", "été").replace("ﬁ", "fi").encode(), digest_size=8).hexdigest()
    assert key_of("The  E\u0301te\u0301 of\n ﬁve ") == int(digest, 16)


def shards(folder: Path, train: list[str], heldout: list[str]) -> Path:
    """Writes the shards of a prepared corpus. Each shard has two documents and their keys."""
    folder.mkdir()
    for kind, texts in (("train", train), ("heldout", heldout)):
        for start in range(0, len(texts), 2):
            some = texts[start : start + 2]
            path = folder / f"{kind}-{start:06d}-000000.arrow"
            write_shard(path, [[1, 2]] * len(some), 10, keys=[key_of(text) for text in some])
    return folder


def test_measured_documents_are_recognised_in_any_case(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(50)]
    folders = [shards(tmp_path / "one", texts[30:], texts[:3]), shards(tmp_path / "two", [], texts[3:5])]
    measured = Measured.of(folders)
    assert [measured(text.upper()) for text in texts] == [MEASURED] * 5 + [None] * 45
    assert not any(Measured.of([])(text) for text in texts)


def test_measured_documents_in_training_text_are_counted_once_each(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(20)]
    measured = Measured.of([shards(tmp_path / "measured", [], texts[:7])])
    other = shards(tmp_path / "other", texts[7:], texts[:7])
    leaking = shards(tmp_path / "leaking", [*texts[5:], "TEXT 6", "Text 2"], [])
    assert measured.count_in([other]) == 0
    assert measured.count_in([]) == 0
    assert measured.count_in([other, leaking]) == 3  # `leaking` contains the held-out texts 2, 5 and 6


def test_an_empty_set_of_measured_text(tmp_path: Path) -> None:
    empty = Measured(np.zeros(0, np.uint64))
    assert empty("anything") is None
    assert empty.count_in([shards(tmp_path / "some", ["anything"], [])]) == 0


def test_shards_that_cannot_be_read(tmp_path: Path) -> None:
    shards(tmp_path / "some", [], ["text"])
    # this shard lacks the column with the documents' keys
    write_shard(tmp_path / "some" / "heldout-000009-000000.arrow", [[1]], 10)
    with pytest.raises(DataError, match=r"heldout-000009[\s\S]*delete"):
        Measured.of([tmp_path / "some"])


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists the maps of a process")
def test_no_shard_stays_mapped_after_its_keys_are_read(tmp_path: Path) -> None:
    for number in range(3):
        write_shard(tmp_path / f"heldout-{number:06d}-000000.arrow", [[1]], 10, keys=[number])
    keys = list(_keys(tmp_path, HELDOUT_GLOB))
    assert [part.tolist() for part in keys] == [[0], [1], [2]]
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
