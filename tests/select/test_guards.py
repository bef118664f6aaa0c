"""What leaves a pool first: near copies, by every pair, of evaluation text and of what is measured."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from adapt.config import CorpusConfig, EvaluationSet
from adapt.corpus.dedup.deduplicate import Alike
from adapt.corpus.files.manifest import build_manifest
from adapt.corpus.shingles import normalised, words
from adapt.runner.digest import Digests
from adapt.select.guards import GENERAL, MeasuredText, guards
from tests.corpus.screening.test_heldout import shards
from tests.samples import write

WORDS = [f"w{number}" for number in range(300)]
PLAIN = CorpusConfig(cleaning=[])


def texts(count: int, seed: int, length: int = 60) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=length)) for _ in range(count)]


def changed(text: str, number: int, seed: int) -> str:
    """So many words replaced, anywhere."""
    rng, parts = random.Random(seed), text.split()
    for place in rng.sample(range(len(parts)), number):
        parts[place] = "changed"
    return " ".join(parts)


def jaccard(one: str, other: str) -> float:
    sides = [words(normalised(text)) for text in (one, other)]
    runs = [{tuple(side[n : n + 5]) for n in range(len(side) - 4)} for side in sides]
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


@pytest.fixture
def measured(tmp_path: Path) -> MeasuredText:
    """Eight texts, of which the first five are measured."""
    file = write(tmp_path / "general.jsonl", [{"text": text} for text in texts(8, 1)])
    shards(tmp_path / "general", texts(8, 1)[5:], texts(8, 1)[:5])
    corpus = replace(PLAIN, paths=file)
    return MeasuredText(tmp_path / "general", build_manifest(corpus, Digests()), corpus)


@pytest.mark.parametrize("length", [14, 20, 30, 60, 200])
def test_whatever_is_a_near_copy_of_a_test_text_leaves(length: int, tmp_path: Path) -> None:
    """As `corpus.near_*` has it: .8 of the runs of five words of both."""
    known = texts(20, 2, length)
    file = write(tmp_path / "test.jsonl", [{"text": text} for text in known])
    check = guards(replace(PLAIN, decontaminate=[EvaluationSet("test", file)]), [], []).sieve.contaminated
    assert check
    copies = [changed(text, number, seed) for seed, text in enumerate(known) for number in (0, 1, 2, 4)]
    copies += [variant for text in known for variant in (f"{text} more", text.upper(), f"more {text}", text[3:])]
    near = [
        copy for place, copy in enumerate(copies) if max(jaccard(copy, text) for text in known) >= Alike(True).threshold
    ]
    assert len(near) >= 60
    assert all(check(near))
    assert not any(check(texts(50, 3, length)))


def test_near_copies_and_parts_of_measured_text_leave_and_other_text_stays(measured: MeasuredText) -> None:
    found = guards(PLAIN, [measured.folder], [measured])
    assert list(measured.texts()) == texts(8, 1)[:5]
    assert found.sieve.contaminated
    assert found.sieve.measured
    first, second, *_ = texts(8, 1)
    leaving = [first, changed(second, 1, 0), " ".join(second.split()[10:50]), f"{first} and so on"]
    assert all(reason == f"in evaluation set {GENERAL}" for reason in found.sieve.contaminated(leaving))
    staying = [*texts(8, 1)[5:], *texts(5, 4), " ".join([*first.split()[:14], *texts(1, 5)[0].split()])]
    assert not any(found.sieve.contaminated(staying))
    assert [bool(reason) for reason in found.sieve.measured([first.upper(), staying[0]])] == [True, False]


def test_nothing_to_guard_lets_all_pass() -> None:
    found = guards(PLAIN, [], [])
    assert found.sieve.contaminated is found.sieve.measured is None
    assert found.evaluation_texts == {}
