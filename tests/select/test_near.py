"""Near copies are passed over: against the Jaccard similarity of whole sets of shingles."""

import random

from adapt.corpus.dedup.deduplicate import Alike
from adapt.select.near import Distinct
from tests.samples import sentences

ALIKE = Alike(near=True)


def jaccard(one: str, other: str) -> float:
    sets = [{tuple(words[n : n + 5]) for n in range(max(1, len(words) - 4))} for words in (one.split(), other.split())]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def test_copies_up_to_case_and_spaces_are_passed_over_also_in_one_call() -> None:
    distinct = Distinct(ALIKE)
    assert distinct.are_new(["a text", "A  Text", "another"]) == [True, False, True]
    assert distinct.are_new(["another", "a third one"]) == [False, True]
    assert distinct.are_new([]) == []


def test_near_copies_are_those_of_a_comparison_of_all_pairs() -> None:
    draw = random.Random(0)
    base = [text.rstrip(".") for text in sentences(40, shortest=60, longest=80)]
    texts = []
    for text in base:
        words = text.split()
        light = [*words[:-1], "changed"]  # of some 70 shingles one is another
        heavy = [word if n % 6 else "changed" for n, word in enumerate(words)]  # hardly any is left
        texts += [text, " ".join(light), " ".join(heavy)]
    draw.shuffle(texts)
    kept: list[str] = []
    expected = []
    for text in texts:
        similar = [jaccard(text, other) for other in kept]
        assert not any(0.7 < value < 0.9 for value in similar)  # no case is left to chance
        expected.append(all(value < 0.8 for value in similar))
        kept += [text] if expected[-1] else []
    distinct = Distinct(ALIKE)
    assert [new for start in range(0, len(texts), 7) for new in distinct.are_new(texts[start : start + 7])] == expected
    assert sum(expected) == 80
