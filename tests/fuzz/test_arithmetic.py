"""Tests random mixtures, windows and batches: no row is lost or repeated, and any position can be computed directly."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adapt.config import MixtureConfig, TrainingConfig
from adapt.corpus.sample_order import Mixture, permute, samples
from adapt.corpus.token_shards import Columns, Cut
from adapt.support.errors import AdaptError
from adapt.support.schema import STARTS, TOKENS
from adapt.train.schedule import RunLength, branch_step, learning_rate, length_of, micro_batch

pytestmark = pytest.mark.heavy
MOST = 3000
"""Maximum number of samples that a test lists."""

weights = st.one_of(st.just(0.0), st.floats(1e-300, 1e300), st.floats(0.01, 10))
shared = st.one_of(
    st.tuples(st.just(None), st.lists(st.integers(0, 200), min_size=1, max_size=6)),
    st.lists(st.tuples(weights, st.integers(1, 200)), min_size=1, max_size=6).map(
        lambda pairs: tuple(map(list, zip(*pairs, strict=True)))
    ),
    st.integers(90, 300).map(lambda count: ([1.0 + n % 7 for n in range(count)], [1 + n % 5 for n in range(count)])),
)
configs = st.builds(
    MixtureConfig,
    order=st.sampled_from(["interleaved", "sequential"]),
    temperature=st.one_of(st.just(1.0), st.floats(1e-3, 1e6)),
    replay_fraction=st.one_of(st.just(0.0), st.floats(0, 0.999)),
)


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    """Draws a mixture of any form that a stage may build."""
    given_weights, rows = draw(shared)
    assume(any(rows) and (given_weights is None or any(given_weights)))
    if given_weights:
        rows = [
            count * draw(st.integers(0, 1)) if not weight else count
            for weight, count in zip(given_weights, rows, strict=True)
        ]
    config = draw(configs)
    replay = draw(st.one_of(st.just([]), st.lists(st.integers(1, 50), min_size=1, max_size=2)))
    return Mixture.of(rows, draw(st.integers(0, 2**64)), config, given_weights, replay)


@settings(max_examples=100)
@given(mixture=mixtures(), start=st.integers(0, 10**12), count=st.integers(1, 500))
def test_every_sample_is_a_row(mixture: Mixture, start: int, count: int) -> None:
    wanted = np.arange(start, start + count)
    places = mixture.locate(wanted)
    rows = np.array(mixture.rows)
    assert (places.rows >= 0).all()
    assert (places.rows < rows[places.sources]).all()
    place = start + count // 2
    alone = mixture.locate(np.array([place]))
    assert [column[0] for column in alone] == [column[count // 2] for column in places]
    numbers = mixture.numbers(places)
    assert (numbers < rows.sum()).all()


@settings(max_examples=60)
@given(mixture=mixtures(), count=st.integers(0, 5000))
def test_the_numbers_of_drawn_rows_add_up(mixture: Mixture, count: int) -> None:
    drawn = Counter(mixture.locate(np.arange(count)).sources.tolist())
    assert mixture.drawn(count) == [drawn[source] for source in range(len(mixture.rows))]
    assert sum(mixture.drawn(10**9 + count)) == 10**9 + count


@settings(max_examples=60)
@given(mixture=mixtures())
def test_no_row_repeats_before_all_rows_of_its_group_came_once(mixture: Mixture) -> None:
    places = mixture.locate(np.arange(min(MOST, 3 * mixture.epoch)))
    seen = Counter(zip(*(column.tolist() for column in places), strict=True))
    assert max(seen.values()) == 1  # Each row of a source occurs once per epoch.
    assert sum(mixture.slots) == mixture.period
    assert all(slots for slots, group in zip(mixture.slots, mixture.groups, strict=True) if len(mixture.groups) == 1)


def stream(tokens: int, pieces: list[int]) -> list[Columns]:
    """Returns the numbers 0, 1, 2, … in pieces. The sizes of the pieces repeat."""
    numbers, cut = np.arange(tokens, dtype=np.uint32), []
    while len(numbers):
        size = pieces[len(cut) % len(pieces)]
        cut.append({TOKENS: numbers[:size], STARTS: numbers[:size] % 5 == 0})
        numbers = numbers[size:]
    return cut


@settings(max_examples=150)
@given(
    cut=st.builds(Cut, st.integers(1, 9), st.integers(1, 7), st.integers(0, 2**40), st.integers(1, 90)),
    tokens=st.integers(0, 400),
    pieces=st.lists(st.integers(1, 50), min_size=1, max_size=5),
    data=st.data(),
)
def test_a_stream_is_trained_on_once_and_can_start_at_any_step(
    cut: Cut, tokens: int, pieces: list[int], data: st.DataObject
) -> None:
    batches = list(cut.batches(stream(tokens, pieces), 0))
    rows = [row for batch in batches for row in zip(*(batch[n] for n in (TOKENS, "lengths", "epochs")), strict=True)]
    once = sorted(int(token) for row, length, epoch in rows if not epoch for token in row[:length])
    assert once == list(range(tokens))
    assert {len(batch[TOKENS]) for batch in batches} <= {cut.global_batch_size}
    if not batches:
        return
    step = data.draw(st.integers(0, len(batches) - 1))
    begin = cut.start_of(step)
    later = [
        {name: values[max(0, begin - offset) :] for name, values in piece.items()}
        for piece, offset in zip(stream(tokens, [7]), range(0, tokens, 7), strict=True)
    ]
    resumed = list(cut.batches([piece for piece in later if len(piece[TOKENS])], step))
    assert len(resumed) == len(batches) - step
    for one, other in zip(resumed, batches[step:], strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in other)


trainings = st.builds(
    TrainingConfig,
    max_steps=st.one_of(st.none(), st.integers(1, 300)),
    max_tokens=st.one_of(st.none(), st.integers(1, 10**6)),
    epochs=st.one_of(st.none(), st.floats(0.001, 50)),
    schedule=st.sampled_from(["linear", "cosine", "constant", "wsd"]),
    warmup_fraction=st.floats(0, 1),
    warmup_steps=st.one_of(st.none(), st.integers(0, 50)),
    cooldown_fraction=st.floats(0, 1),
    floor_fraction=st.floats(0, 1),
    global_batch_size=st.integers(1, 64),
    sequence_length=st.integers(1, 64),
    micro_batch=st.one_of(st.just("auto"), st.integers(1, 80)),
)


@settings(max_examples=500)
@given(training=trainings, epoch=st.integers(1, 10**5))
def test_a_run_has_at_least_one_step_and_rates_never_exceed_the_peak(training: TrainingConfig, epoch: int) -> None:
    length: RunLength = length_of(training, epoch)
    assert length.steps >= 1
    branch = branch_step(training, length.steps)
    assert branch is None or branch > 0
    for step in {0, length.steps // 2, length.steps - 1}:
        assert 0 <= learning_rate(training, step, length.steps) <= training.learning_rate * (1 + 1e-9)


@settings(max_examples=500)
@given(training=trainings, workers=st.integers(1, 9), step=st.integers(0, 10**9))
def test_workers_share_a_batch_equally_or_are_refused(training: TrainingConfig, workers: int, step: int) -> None:
    size = training.global_batch_size
    try:
        passed, passes = micro_batch(training, workers)
    except AdaptError:
        assert size % workers
        return
    assert passed * passes * workers == size
    assert training.micro_batch == "auto" or passed <= training.micro_batch
    ranks = [samples(step, rank, workers, size) for rank in range(workers)]
    assert np.concatenate(ranks).tolist() == list(range(step * size, (step + 1) * size))


@settings(max_examples=500)
@given(size=st.integers(1, 10**15), seed=st.integers(-(2**63), 2**64), epoch=st.integers(0, 10**9), data=st.data())
def test_shuffled_positions_are_a_permutation_of_the_rows(
    size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), unique=True, min_size=1, max_size=50))
    rows = permute(np.array(places, np.int64), size, seed, epoch).tolist()
    assert len(set(rows)) == len(places)
    assert all(0 <= row < size for row in rows)
