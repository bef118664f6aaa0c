"""Clusters against a search through the graph."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adapt.corpus.dedup.clusters import clusters, kept_apart, reduced

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=60)


def searched(pairs: list[tuple[int, int]]) -> dict[int, int]:
    """The smallest document that can be reached from each."""
    reached = {document: {document} for pair in pairs for document in pair}
    for _ in reached:
        for one, other in pairs:
            both = reached[one] | reached[other]
            for document in both:
                reached[document] = both
    return {document: min(others) for document, others in reached.items()}


def found(pairs: np.ndarray) -> dict[int, int]:
    return dict(zip(*(column.tolist() for column in clusters(pairs)), strict=True))


@given(PAIRS)
def test_each_document_has_the_first_of_its_cluster(pairs: list[tuple[int, int]]) -> None:
    array = np.array(pairs, np.int64).reshape(-1, 2)
    assert found(array) == searched(pairs)


@given(PAIRS, st.randoms(use_true_random=False))
def test_the_order_of_pairs_and_reducing_parts_of_them_change_nothing(
    pairs: list[tuple[int, int]], draw: object
) -> None:
    array = np.array(pairs, np.int64).reshape(-1, 2)
    shuffled = pairs.copy()
    draw.shuffle(shuffled)  # type: ignore[attr-defined]
    other = np.array(shuffled, np.int64).reshape(-1, 2)
    half = len(other) // 2
    parts = np.concatenate([reduced(other[:half]), reduced(other[half:])])
    linked = reduced(parts)
    assert linked.tolist() == reduced(array).tolist()
    assert reduced(linked).tolist() == linked.tolist()
    assert len(linked) == sum(document != first for document, first in searched(pairs).items())


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans()), max_size=40),  # source, cluster, held out
    st.integers(0, 3),
)
def test_no_copy_of_what_stays_is_on_the_other_side_or_beside_it(
    drawn: list[tuple[int, int, bool]], before: int
) -> None:
    documents = sorted(drawn, key=lambda document: document[0])
    sources, clusters, heldout = (
        (np.array(column) for column in zip(*documents, strict=True)) if documents else [[]] * 3
    )
    found = {number: list(clusters).index(number) for number in set(clusters)}
    firsts = np.array([found[number] for number in clusters], np.int64)
    sources, heldout = np.array(sources, np.int64), np.array(heldout, bool)
    duplicate, opposed = kept_apart(firsts, sources, heldout, before)
    for number, (source, cluster, out) in enumerate(documents):
        mine = [other for other in range(number) if documents[other][:2] >= (before,) and clusters[other] == cluster]
        beside = [other[2] for other in documents if other[0] < before and other[1] == cluster]
        assert duplicate[number] == (source >= before and bool(mine))
        assert opposed[number] == (source >= before and (not out) in beside)
