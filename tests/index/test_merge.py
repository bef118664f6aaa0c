"""The nearest of parts are the nearest of the whole."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adapt.index.merge import NOBODY, merge_nearest, nearest_first

DISTANCES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5]), min_size=1, max_size=40)


@given(DISTANCES, st.integers(1, 12), st.randoms(use_true_random=False), st.integers(1, 5))
def test_shards_and_their_order_change_nothing(distances: list[float], k: int, draw: object, shards: int) -> None:
    ids = list(range(2**24, 2**24 + len(distances)))
    draw.shuffle(ids)  # type: ignore[attr-defined]
    expected = sorted(zip(distances, ids, strict=True))[:k]
    owner = [draw.randrange(shards) for _ in ids]  # type: ignore[attr-defined]
    parts = []
    for shard in range(shards):
        mine = [place for place, number in enumerate(owner) if number == shard]
        given_ = np.array([[distances[n] for n in mine]]), np.array([[ids[n] for n in mine]], np.int64)
        parts.append(nearest_first(*given_, k))
    draw.shuffle(parts)  # type: ignore[attr-defined]
    found = merge_nearest(parts, k)
    assert list(zip(found[0][0].tolist(), found[1][0].tolist(), strict=True))[: len(expected)] == expected
    assert (found[1][0][len(expected) :] == NOBODY).all()
    assert found[1].dtype == np.int64
