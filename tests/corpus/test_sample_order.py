"""Tests the order in which a mixture takes samples from its sources.

Up to any step of a run, the sources have their configured shares. Each row occurs once per epoch. Any sample can be
located without computing the samples before it.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from adapt.config import MixtureConfig
from adapt.corpus.sample_order import SLOTS, Mixture, Places, permute, proportions, samples
from adapt.support.splitmix import mix

pytestmark = pytest.mark.heavy

SEQUENTIAL = MixtureConfig(order="sequential")


def first(mixture: Mixture, count: int) -> list[tuple[int, int, int]]:
    """Returns source, epoch and row of each of the first `count` samples."""
    return triples(mixture.locate(np.arange(count)))


def triples(places: Places) -> list[tuple[int, int, int]]:
    return list(zip(*(column.tolist() for column in places), strict=True))


def brute_force(mixture: Mixture, count: int) -> list[tuple[int, int, int]]:
    """Returns the result of `first`, computed by walking through the slots of each period and each group's epochs."""
    queues = []
    for number, group in enumerate(mixture.groups):
        seed = mixture.seed + number * 0x9E3779B97F4A7C15
        names = [(source, row) for source, rows in zip(group.sources, group.rows, strict=True) for row in range(rows)]

        def walk(names=names, seed=seed, group=group):
            epoch = 0
            while True:
                if group.in_turn:
                    for number, (source, rows) in enumerate(zip(group.sources, group.rows, strict=True)):
                        order = permute(np.arange(rows), rows, seed + number, epoch).tolist() if rows else []
                        yield from ((source, epoch, row) for row in order)
                else:
                    for place in permute(np.arange(len(names)), len(names), seed, epoch).tolist():
                        yield names[place][0], epoch, names[place][1]
                epoch += 1

        queues.append(walk())
    slots = [group for group, count in enumerate(mixture.slots) for _ in range(count)]
    found = []
    for period in range(-(-count // SLOTS)):
        order = permute(np.arange(SLOTS), SLOTS, mixture.seed - 0x9E3779B97F4A7C15, period)
        found += [next(queues[slots[slot]]) for slot in order.tolist()]
    return found[:count]


mixtures = st.builds(
    Mixture.of,
    rows=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    seed=st.integers(-5, 2**63),
    config=st.builds(
        MixtureConfig,
        order=st.sampled_from(["interleaved", "sequential"]),
        temperature=st.sampled_from([1.0, 1.0, 3.0]),
        replay_fraction=st.floats(0, 0.9),
    ),
    replay=st.lists(st.integers(1, 100), max_size=2),
)


@settings(max_examples=40)
@given(mixture=mixtures, start=st.integers(0, 2500), count=st.integers(1, 300))
def test_samples_can_be_located_without_earlier_ones(mixture: Mixture, start: int, count: int) -> None:
    everything = brute_force(mixture, start + count)
    assert triples(mixture.locate(np.arange(start, start + count))) == everything[start:]


@settings(max_examples=60)
@given(mixture=mixtures, count=st.integers(0, 3000))
def test_drawn_counts_the_rows_of_each_source(mixture: Mixture, count: int) -> None:
    drawn = Counter(source for source, _, _ in first(mixture, count))
    assert mixture.drawn(count) == [drawn[source] for source in range(len(mixture.rows))]


PROGRESSIVE = [(0.0, 0.5), (0.5, 0.1), (0.2, 0.2)]


@pytest.mark.parametrize(("begins", "ends"), PROGRESSIVE)
def test_the_share_of_general_text_changes_linearly_along_the_run(begins: float, ends: float) -> None:
    config, samples = MixtureConfig(replay_fraction=begins, replay_last=ends), 20 * SLOTS
    mixture = Mixture.of([300, 70], 3, config, replay=[50], recalled=[40], recalled_fraction=0.1, samples=samples)
    sources = mixture.locate(np.arange(samples + 2 * SLOTS)).sources.reshape(-1, SLOTS)
    general, past = (sources == 3).mean(1), (sources == 2).mean(1)
    expected = begins + (ends - begins) * (np.arange(20) + 0.5) / 20
    assert np.abs(general[:20] - expected).max() <= 1 / SLOTS
    assert (general[20:] == general[19]).all()  # after the planned length of 20 periods, the share no longer changes
    assert np.abs(past - 0.1).max() <= 1 / SLOTS
    assert general.tolist() == sorted(general, reverse=ends < begins)


@settings(max_examples=20, deadline=None)
@given(shares=st.sampled_from(PROGRESSIVE), start=st.integers(0, 4000), samples=st.integers(1, 6000))
def test_samples_of_a_changing_mixture_can_be_located_and_counted(
    shares: tuple[float, float], start: int, samples: int
) -> None:
    config = MixtureConfig(replay_fraction=shares[0], replay_last=shares[1])
    mixture = Mixture.of([30, 7], 5, config, replay=[50], samples=samples)
    everything = first(mixture, start + 50)
    assert triples(mixture.locate(np.arange(start, start + 50))) == everything[start:]
    counted = Counter(source for source, _, _ in everything)
    assert mixture.drawn(start + 50) == [counted[source] for source in range(3)]
    rows = [row for source, epoch, row in everything if (source, epoch) == (2, 0)]
    assert len(rows) == len(set(rows))  # no row occurs twice in an epoch


@pytest.mark.parametrize("order", ["interleaved", "sequential"])
def test_rows_of_general_text_have_the_largest_numbers(order: str) -> None:
    config = MixtureConfig(order=order, replay_fraction=0.25)  # type: ignore[arg-type]
    mixture = Mixture.of([30, 20], 0, config, replay=[9], recalled=[4, 3], recalled_fraction=0.2)
    places = mixture.locate(np.arange(1000))
    assert mixture.first_general == 57
    assert np.array_equal(mixture.numbers(places) >= 57, places.sources == 4)
    assert Mixture.of([30, 20], 0, config, recalled=[4], recalled_fraction=0.2).first_general is None


def test_one_source_is_read_in_permuted_order() -> None:
    expected = [(0, epoch, row) for epoch in range(4) for row in permute(np.arange(700), 700, 9, epoch).tolist()]
    assert first(Mixture.of([700], 9), 2800) == expected
    assert first(Mixture.of([700], 9, SEQUENTIAL), 2800) == expected


def test_without_weights_every_row_comes_once_per_epoch() -> None:
    mixture = Mixture.of([5, 1000, 0, 1], 3)
    for epoch in range(3):
        samples = triples(mixture.locate(np.arange(1006 * epoch, 1006 * (epoch + 1))))
        assert {e for _, e, _ in samples} == {epoch}
        assert {(s, row) for s, _, row in samples} == {
            *((0, row) for row in range(5)),
            *((1, row) for row in range(1000)),
            (3, 0),
        }
    assert mixture.epoch == 1006
    sources = [source for source, _, _ in first(mixture, 1006)]
    assert sources != sorted(sources)


@pytest.mark.parametrize("weights", [[1, 1], [3, 1], [0.2, 0.3, 0.5], [1e-9, 1], [5, 1, 1, 1, 1]])
def test_every_prefix_has_the_shares_of_sources_to_within_a_period(weights: list[float]) -> None:
    mixture = Mixture.of([7 * (1 + n) for n in range(len(weights))], 1, weights=weights)
    sources = mixture.locate(np.arange(5 * SLOTS)).sources
    exact = np.array([max(weight / sum(weights), 1 / SLOTS) for weight in weights])
    counts = np.cumsum(sources[:, None] == np.arange(len(weights)), axis=0)
    lengths = np.arange(1, 5 * SLOTS + 1)[:, None]
    # the first bound holds at any sample, the second bound at the end of each period
    assert np.abs(counts - lengths * exact).max() < SLOTS / 4
    assert np.abs(counts[SLOTS - 1 :: SLOTS] - lengths[SLOTS - 1 :: SLOTS] * exact).max() <= 5
    assert (np.diff(counts[SLOTS - 1 :: SLOTS], axis=0) == mixture.slots).all()


@pytest.mark.parametrize("count", [101, 1500])
@pytest.mark.parametrize("temperature", [None, 1.5])
def test_each_of_many_sources_has_its_share(count: int, temperature: float | None) -> None:
    weights, config = np.arange(1, count + 1, dtype=float), MixtureConfig(temperature=temperature or 1.0)
    rows = [1000 * n for n in range(1, count + 1)]
    mixture = Mixture.of(rows, 0, config, None if temperature else weights.tolist(), replay=[70])
    if temperature:
        weights **= 1 / temperature
    shares = np.array([*weights / weights.sum() * 0.9, 0.1])
    counts = np.bincount(mixture.locate(np.arange(mixture.period)).sources, minlength=count + 1)
    assert counts.min() >= 1
    assert np.abs(counts / mixture.period - shares).max() < 0.1 / count + 1.5 / mixture.period
    assert mixture.drawn(mixture.period) == counts.tolist()


def test_weights_of_extreme_sizes_are_accepted() -> None:
    assert Mixture.of([9, 9, 9], 0, weights=[1e308, 1.5e308, 5e-324]).slots == (400, 599, 1)
    assert Mixture.of([10**6, 1, 0], 0, MixtureConfig(temperature=1e-3)).slots == (999, 1, 0)


def test_no_row_repeats_before_all_rows_of_its_source_were_used() -> None:
    mixture = Mixture.of([13, 1700], 1, weights=[1, 2])
    samples = first(mixture, 9000)
    for source, rows in enumerate((13, 1700)):
        mine = [(epoch, row) for s, epoch, row in samples if s == source]
        for epoch in range(len(mine) // rows):
            part = mine[epoch * rows : (epoch + 1) * rows]
            assert {e for e, _ in part} == {epoch}
            assert {row for _, row in part} == set(range(rows))
    orders = [[row for s, e, row in samples if s == 0 and e == epoch] for epoch in range(9)]
    assert len({tuple(order) for order in orders}) > 5


def test_sequential_order_reads_one_source_after_another() -> None:
    samples = first(Mixture.of([30, 20, 10], 0, SEQUENTIAL), 120)
    assert [s for s, _, _ in samples] == ([0] * 30 + [1] * 20 + [2] * 10) * 2
    assert [row for _, _, row in samples[:30]] != list(range(30))
    assert {row for _, _, row in samples[30:50]} == set(range(20))


@pytest.mark.parametrize("order", ["interleaved", "sequential"])
def test_replay_has_its_share_in_every_part_of_a_run(order: str) -> None:
    config = MixtureConfig(order=order, replay_fraction=0.25)  # type: ignore[arg-type]
    mixture = Mixture.of([3000, 2000], 0, config, replay=[50])
    sources = mixture.locate(np.arange(mixture.epoch)).sources
    for part in np.array_split(sources == 2, 6):
        assert part.mean() == pytest.approx(0.25, abs=0.03)
    assert mixture.epoch == 6667  # 5,000 rows of the domain are 75% of 6,667 samples
    assert (sources != 2).sum() == pytest.approx(5000, abs=30)
    if order == "sequential":
        domain = sources[sources != 2][:4900]
        assert np.array_equal(np.sort(domain), domain)


def test_rows_have_different_numbers() -> None:
    mixture = Mixture.of([40, 1, 60], 0, weights=[1, 1, 1], replay=[9])
    places = mixture.locate(np.arange(5000))
    numbers = mixture.numbers(places)
    assert set(numbers.tolist()) == set(range(110))
    pairs = set(zip(places.sources.tolist(), places.rows.tolist(), numbers.tolist(), strict=True))
    assert len(pairs) == 110


def test_sources_of_equal_size_are_shuffled_differently() -> None:
    samples = first(Mixture.of([100, 100], 0, weights=[1, 1]), 200)
    one, other = ([row for s, e, row in samples if s == source and e == 0] for source in (0, 1))
    assert one[:90] != other[:90]


def test_samples_far_into_a_run_of_huge_sources_can_be_located() -> None:
    mixture = Mixture.of([10**12, 10**10], 0, weights=[1, 3])
    places = mixture.locate(np.arange(10**13, 10**13 + 2000))
    assert Counter(places.sources.tolist()) == {0: 500, 1: 1500}
    assert places.epochs[places.sources == 1].min() == 750


def test_higher_temperatures_make_shares_more_even() -> None:
    assert proportions([100, 10_000], 1) == pytest.approx([1 / 101, 100 / 101])
    assert proportions([100, 10_000], 2) == pytest.approx([10 / 110, 100 / 110])
    even = Mixture.of([100, 10_000], 0, MixtureConfig(temperature=2.0)).slots
    assert even == (91, 909)
    assert Mixture.of([100, 10_000], 0, MixtureConfig(temperature=1e9)).slots == (500, 500)


SIZES = (1, 2, 3, 4, 5, 7, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4096, 4097, 65_536, 65_537, 200_003)


def whole(size: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return permute(np.arange(size), size, seed, epoch)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (1, 0), (0, 1), (2**63, 10_000), (-1, 3)])
def test_permutation_contains_every_row_once(size: int, seed: int, epoch: int) -> None:
    rows = whole(size, seed, epoch)
    assert rows.dtype == np.int64
    assert np.array_equal(np.sort(rows), np.arange(size))


@given(st.integers(1, 3000), st.integers(-(2**63), 2**64), st.integers(0, 10**6), st.data())
def test_single_positions_can_be_permuted(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=20)), np.int64)
    assert np.array_equal(permute(places, size, seed, epoch), whole(size, seed, epoch)[places])


def test_a_position_among_no_rows_is_refused() -> None:
    """Permuting positions of an empty range raises an error, because the search for a row in it would never end."""
    with pytest.raises(ValueError, match="cannot permute positions among 0 rows"):
        permute(np.zeros(1, np.int64), 0, 0, 0)
    assert permute(np.zeros(0, np.int64), 0, 0, 0).tolist() == []


def test_permute_does_not_change_its_argument() -> None:
    places = np.arange(5)
    permute(places, 5, 0, 0)
    assert places.tolist() == [0, 1, 2, 3, 4]


def test_permuting_a_huge_corpus_takes_no_memory() -> None:
    """Permutes 1,000 positions of 10^15 rows. A table of all rows would not fit into memory.

    The mean of 1,000 random rows is within 4 standard deviations of the middle.
    """
    size = 10**15
    rows = permute(np.arange(1000), size, 0, 0)
    assert len(set(rows.tolist())) == 1000
    assert rows.min() >= 0
    assert rows.max() < size
    assert abs(rows.mean() / size - 0.5) < 4 / np.sqrt(12 * 1000)


def test_seeds_and_epochs_have_different_permutations() -> None:
    orders = {whole(1000, seed, epoch).tobytes() for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400
    assert np.array_equal(whole(1000, 3, 4), whole(1000, 3, 4))


@pytest.mark.parametrize("size", [2, 3, 5, 20])
def test_permutations_are_uniform(size: int) -> None:
    epochs = np.array([whole(size, seed=1, epoch=epoch) for epoch in range(2000)])
    for place in {0, 1, size // 2, size - 1}:
        assert chisquare(np.bincount(epochs[:, place], minlength=size)).pvalue > 1e-4


def test_permuted_neighbours_and_successive_epochs_are_uncorrelated() -> None:
    size = 20_000
    rows, later = whole(size, 0, 0), whole(size, 0, 1)
    bound = 4 / np.sqrt(size)
    assert abs(np.corrcoef(rows, np.arange(size))[0, 1]) < bound
    assert abs(np.corrcoef(rows[1:], rows[:-1])[0, 1]) < bound
    assert abs(np.corrcoef(rows, later)[0, 1]) < bound
    steps = np.diff(rows) % size
    assert chisquare(np.bincount(steps * 20 // size, minlength=20)).pvalue > 1e-4
    assert (rows == later).sum() < 10  # two random permutations agree at 1 position on average


def test_mix_is_splitmix64() -> None:
    """Compares `mix` with the first four numbers of Vigna's reference implementation of SplitMix64 for seed 0."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert mix(np.arange(1, 5, dtype=np.uint64) * golden).tolist() == expected


# Tests of samples


@pytest.mark.parametrize(("size", "worlds"), [(12, (1, 2, 3, 4, 6, 12)), (10, (1, 2, 5))])
def test_the_ranks_of_a_step_divide_its_samples(size: int, worlds: tuple[int, ...]) -> None:
    for world in worlds:
        for step in (0, 1, 50, 10**12):
            parts = [samples(step, rank, world, size) for rank in range(world)]
            assert {len(part) for part in parts} == {size // world}
            assert np.concatenate(parts).tolist() == list(range(step * size, step * size + size))
