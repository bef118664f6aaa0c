"""Tests how a period's slots (samples) are divided among groups by the groups' shares, and sums over many periods."""

from hypothesis import given
from hypothesis import strategies as st

from adapt.corpus.sample_order import MOST_PHASES, Slots, largest_remainder


@given(st.integers(1, 60), st.integers(2, 5), st.integers(0, 200))
def test_samples_before_a_period_are_the_sum_of_earlier_periods(phases: int, lasting: int, period: int) -> None:
    slots = Slots(tuple((number, 100 - number) for number in range(phases)), lasting)
    assert slots.before(period).tolist() == [
        sum(int(slots.at(each)[group]) for each in range(period)) for group in (0, 1)
    ]


def test_a_long_run_has_at_most_1000_phases_and_keeps_the_last_share() -> None:
    slots = Slots.of(lambda place: (place, 1 - place), 1000, 5 * MOST_PHASES)
    assert (len(slots.phases), slots.lasting) == (MOST_PHASES, 5)
    assert slots.at(4).tolist() == slots.at(0).tolist() != slots.at(5).tolist()
    assert slots.at(10**9).tolist() == list(slots.phases[-1])
    assert slots.before(5 * MOST_PHASES).sum() == 5 * MOST_PHASES * 1000


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=20), st.integers(30, 2000))
def test_largest_remainder(weights: list[float], total: int) -> None:
    shares = [weight / sum(weights) for weight in weights]
    counts = largest_remainder(shares, total)
    assert sum(counts) == total
    assert min(counts) >= 1
    if min(shares) * total >= 1:
        assert all(abs(count - share * total) < 1 for count, share in zip(counts, shares, strict=True))


def test_largest_remainder_by_example() -> None:
    """Divides 10 by Hamilton's method. The results were computed by hand.

    In the first example, the exact numbers are 3.5, 3.3, 2.2 and 1.0. Rounded down, they sum to 9, so the number with
    the largest remainder (3.5) gets one more. In the second example, every share above 0 gets at least one slot.
    """
    assert largest_remainder([0.35, 0.33, 0.22, 0.10], 10) == (4, 3, 2, 1)
    assert largest_remainder([0.999, 0.0005, 0.0005], 10) == (8, 1, 1)
