"""Which row of which source is sample j of a run: a function of (seed, j), in constant time and memory.

Rows are permuted by (seed, epoch) without a table. Sources form groups. Within a group every row comes once an epoch,
shuffled together or one source after another, and a group that runs out starts again. Groups share the run by a pattern
of slots, 1,000 per period where groups are few, and each group has a fixed number of them; the slots of every period
are permuted anew. So in each prefix of a run every group has its share to within one period, and the n-th sample of a
group is found without those before it.

Where the share of general text grows or falls along a run, the run is cut into phases of whole periods, each with its
own numbers of slots. The number of samples of a group before a period is then still known at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import ceil, floor
from typing import NamedTuple

import numpy as np

from adapt.config import MixtureConfig
from adapt.support.splitmix import GOLDEN, mix

_PART = 1 << 20
"""Places evaluated at once where many are counted."""


class Places(NamedTuple):
    """Where samples are found, int64 [samples] each."""

    sources: np.ndarray
    """Number of the source, in the order the sources are listed."""
    epochs: np.ndarray
    """Pass over the group of that source."""
    rows: np.ndarray
    """Row within the source."""


@dataclass(frozen=True)
class Group:
    """Sources that are passed through together."""

    sources: tuple[int, ...]
    """Their numbers."""
    rows: tuple[int, ...]
    """Rows of each."""
    in_turn: bool = False
    """One source after another, in this order, each shuffled; else all shuffled together."""

    @cached_property
    def total(self) -> int:
        """Rows of an epoch."""
        return sum(self.rows)

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.array([0, *accumulate(self.rows)], np.int64)

    def locate(self, numbers: np.ndarray, seed: int) -> Places:
        """The samples with these numbers within the group, which must have a row if there are any."""
        epochs, places = np.divmod(numbers, self.total)
        if not self.in_turn:
            places = _permuted(epochs, places, self.total, seed)
        owners = np.searchsorted(self._starts, places, side="right") - 1  # never an empty source
        rows = places - self._starts[owners]
        if self.in_turn:
            for owner in np.unique(owners):
                here = owners == owner
                rows[here] = _permuted(epochs[here], rows[here], self.rows[owner], seed + int(owner))
        return Places(np.array(self.sources, np.int64)[owners], epochs, rows)

    def drawn(self, count: int, seed: int) -> np.ndarray:
        """Rows of each of its sources among its first samples, int64 [sources of the group].

        Whole epochs are known; the places of a part of one are gone through, unless the sources come in turn.
        """
        if not count:
            return np.zeros(len(self.rows), np.int64)  # also of a group without rows, which has no epoch
        epochs, rest = divmod(count, self.total)
        if self.in_turn or len(self.rows) == 1:
            part = np.clip(rest - self._starts[:-1], 0, self.rows)
        else:
            part = np.zeros(len(self.rows), np.int64)
            for first in range(0, rest, _PART):
                places = permute(np.arange(first, min(first + _PART, rest)), self.total, seed, epochs)
                owners = np.searchsorted(self._starts, places, side="right") - 1
                part += np.bincount(owners, minlength=len(self.rows))
        drawn: np.ndarray = np.array(self.rows, np.int64) * epochs + part
        return drawn


def _permuted(epochs: np.ndarray, places: np.ndarray, size: int, seed: int) -> np.ndarray:
    """`permute` for places of several epochs."""
    permuted = np.empty_like(places)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        permuted[here] = permute(places[here], size, seed, int(epoch))
    return permuted


MOST_PHASES = 1000
"""Steps in which a share changes along a run, at most."""


@dataclass(frozen=True)
class Slots:
    """The slots of each group, [phases, groups]; the last phase goes on for ever."""

    phases: tuple[tuple[int, ...], ...]
    lasting: int = 1
    """Periods of a phase."""

    @classmethod
    def of(cls, shares_at: Callable[[float], Sequence[float]], period: int, periods: int | None) -> "Slots":
        """The slots by the shares of the groups.

        Args:
            shares_at: the shares at a place of the run, from 0 to 1; they sum to 1.
            period: samples of a period.
            periods: of the whole run; None where shares stay as they are in its middle.
        """
        count = min(periods, MOST_PHASES) if periods else 1
        places = [(phase + 0.5) / count for phase in range(count)]
        phases = tuple(largest_remainder(shares_at(place), period) for place in places)
        return cls(phases, ceil(periods / count) if periods else 1)

    @cached_property
    def _sums(self) -> np.ndarray:
        """Samples of each group before each phase, int64 [phases, groups]."""
        table = np.array(self.phases, np.int64) * self.lasting
        sums: np.ndarray = np.cumsum(table, axis=0) - table
        return sums

    def _phase(self, period: int) -> int:
        return min(period // self.lasting, len(self.phases) - 1)

    def at(self, period: int) -> np.ndarray:
        """The slots of each group in a period, int64 [groups]."""
        return np.array(self.phases[self._phase(period)], np.int64)

    def before(self, period: int) -> np.ndarray:
        """How many samples of each group come before a period, int64 [groups]."""
        phase = self._phase(period)
        before: np.ndarray = self._sums[phase] + (period - phase * self.lasting) * self.at(period)
        return before


def largest_remainder(shares: Sequence[float], total: int) -> tuple[int, ...]:
    """Whole numbers in proportion to shares that sum to 1, and to `total`; at least one for each share above 0.

    Hamilton's method: all are rounded down, and those with the largest remainders get one more.
    """
    counts = [max(share > 0, floor(share * total)) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - shares[i] * total, i))
    for rank in range(total - sum(counts)):
        counts[by_remainder[rank]] += 1
    while sum(counts) > total:  # what the smallest were given, the largest give
        counts[counts.index(max(counts))] -= 1
    return tuple(counts)


DEFAULT = MixtureConfig()
SLOTS = 1000
"""Length of a period [samples], at least: shares are rounded to thousandths ..."""
SLOTS_PER_GROUP = 10
"""... or finer, where many groups share them: what each has at least must not take much from the others."""
_LEAST = 1e-300
"""Least value of a share that is asked for: a share rounded to 0 would silently be left out."""
_SEED_STRIDE = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Mixture:
    """All sources of a run, and how they share it."""

    groups: tuple[Group, ...]
    slots: tuple[int, ...]
    """How many of the slots of a period each group has."""
    seed: int
    beside: int = 0
    """How many groups, the last ones, are text beside the domain's."""
    changing: Slots | None = None
    """The slots of each period, where the share of general text changes along the run; `slots` are then their mean."""
    first_general: int | None = None
    """From this of `numbers` on rows are of general text; None where there is none."""

    @classmethod
    def of(
        cls,
        rows: Sequence[int],
        seed: int,
        config: MixtureConfig = DEFAULT,
        weights: Sequence[float] | None = None,
        replay: Sequence[int] = (),
        recalled: Sequence[int] = (),
        recalled_fraction: float = 0.0,
        samples: int | None = None,
    ) -> "Mixture":
        """The mixture of some sources.

        Args:
            rows: of each source.
            seed: the run's.
            config: how they are mixed.
            weights: the share of each source, if given; must then sum to more than 0.
            replay: rows of the sources of general text. They come after all others.
            recalled: rows of the texts of past domains. They come after those of the domain.
            recalled_fraction: their share of the run.
            samples: of the run, over which the share of general text goes from `replay_fraction` to `replay_last`; None
                where it is not known, or that share stays.
        """
        everyone, tempered = tuple(range(len(rows))), config.temperature != 1 and any(rows)
        if config.order == "sequential" or not (weights or tempered):
            groups, shares = [Group(everyone, tuple(rows), config.order == "sequential")], [1.0]
        else:
            groups = [Group((source,), (rows[source],)) for source in everyone]
            shares = proportions(weights) if weights else proportions(rows, config.temperature)
        first, texts = len(rows), [text for text in (recalled, replay) if text]
        for text in texts:
            groups.append(Group(tuple(range(first, first + len(text))), tuple(text)))
            first += len(text)
        period = max(SLOTS, SLOTS_PER_GROUP * len(groups))
        begins, ends = replay_shares(config)

        def shares_at(place: float) -> list[float]:
            fractions = ((recalled, recalled_fraction), (replay, begins + place * (ends - begins)))
            others = [fraction for text, fraction in fractions if text]
            return [*(share * (1 - sum(others)) for share in shares), *others]

        (mean,) = Slots.of(shares_at, period, None).phases
        changes = replay and samples is not None and share_changes(config)
        changing = Slots.of(shares_at, period, -(-(samples or 1) // period)) if changes else None
        first_general = sum(rows) + sum(recalled) if replay else None
        return cls(tuple(groups), mean, seed, len(texts), changing, first_general)

    @cached_property
    def period(self) -> int:
        """Samples after which every group has had its slots once."""
        return sum(self.slots)

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Rows of each source."""
        return tuple(rows for group in self.groups for rows in group.rows)

    @cached_property
    def _offsets(self) -> np.ndarray:
        return np.array([0, *accumulate(self.rows)][:-1], np.int64)

    def locate(self, samples: np.ndarray) -> Places:
        """Where samples of the run are found, for samples int64 [samples]."""
        groups, numbers = self._slots_of(samples)
        places = Places(*(np.empty_like(samples) for _ in Places._fields))
        for number, group in enumerate(self.groups):
            here = groups == number
            for column, values in zip(places, group.locate(numbers[here], self._seed_of(number)), strict=True):
                column[here] = values
        return places

    def numbers(self, places: Places) -> np.ndarray:
        """The rows' numbers among those of all sources, int64: what random numbers are drawn by (see `noise`)."""
        numbers: np.ndarray = self._offsets[places.sources] + places.rows
        return numbers

    def drawn(self, samples: int) -> list[int]:
        """Rows of each source among the first samples of a run."""
        counts = self._counts(samples)
        parts = [group.drawn(counts[n], self._seed_of(n)) for n, group in enumerate(self.groups)]
        return [int(rows) for part in parts for rows in part]

    @property
    def epoch(self) -> int:
        """Samples in which the domain's sources are passed through once, on average over them."""
        everyone = list(zip(self.groups, self.slots, strict=True))
        domain = [(group.total, slots) for group, slots in everyone[: len(everyone) - self.beside] if slots]
        rows, slots = sum(rows for rows, _ in domain), sum(slots for _, slots in domain)
        return -(-rows * self.period // slots)

    @property
    def exhausted(self) -> int:
        """Samples before the first that comes a second time."""
        used = [number for number, slots in enumerate(self.slots) if slots]
        return min(self._sample_of(number, self.groups[number].total) for number in used)

    def _slots_of(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The group of each sample, and its number within the group."""
        periods, places = np.divmod(samples, self.period)
        groups, numbers = np.empty_like(samples), np.empty_like(samples)
        for period in np.unique(periods):
            here = periods == period
            pattern, ranks = self._pattern(int(period))
            groups[here] = pattern[places[here]]
            numbers[here] = self._periods.before(int(period))[groups[here]] + ranks[places[here]]
        return groups, numbers

    @cached_property
    def _periods(self) -> Slots:
        return self.changing or Slots((self.slots,))

    def _pattern(self, period: int) -> tuple[np.ndarray, np.ndarray]:
        """The group at each slot of a period, and how many slots of that group come before, int64 [period] each."""
        slots = self._periods.at(period)
        ends = np.cumsum(slots)
        places = np.arange(self.period)
        groups = np.searchsorted(ends, permute(places, self.period, self._seed_of(-1), period), side="right")
        ranks = np.empty_like(places)
        ranks[np.argsort(groups, kind="stable")] = places
        return groups, ranks - (ends - slots)[groups]

    def _counts(self, samples: int) -> list[int]:
        """How many of the first samples of a run each group has."""
        period, rest = divmod(samples, self.period)
        part = np.bincount(self._pattern(period)[0][:rest], minlength=len(self.groups))
        return [int(number) for number in self._periods.before(period) + part]

    def _sample_of(self, group: int, number: int) -> int:
        """The sample of the run that is a group's sample of that number."""
        period, rank = divmod(number, self.slots[group])
        pattern, ranks = self._pattern(period)
        return period * self.period + int(np.flatnonzero((pattern == group) & (ranks == rank))[0])

    def _seed_of(self, number: int) -> int:
        """Groups (and, as -1, the pattern) are permuted independently, also where they are of one size."""
        return self.seed + number * _SEED_STRIDE


def replay_shares(config: MixtureConfig) -> tuple[float, float]:
    """The shares of general text at the beginning and at the end of a run."""
    last = config.replay_last
    return config.replay_fraction, config.replay_fraction if last is None else last


def share_changes(config: MixtureConfig) -> bool:
    """Whether the share of general text changes along a run, so that a row of a step depends on the run's length."""
    begins, ends = replay_shares(config)
    return begins != ends


def proportions(weights: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Shares in proportion to weights^(1 / temperature), above 0 where a weight is; more is more even.

    Devlin et al. 2019 (multilingual BERT's exponentially smoothed weighting); Arivazhagan et al., arXiv 1907.05019.
    """
    most = max(weights)  # by which all are divided first: powers and sums of large numbers are infinite
    relative = [max((weight / most) ** (1 / temperature), _LEAST) if weight else 0.0 for weight in weights]
    total = sum(relative)
    return [weight / total for weight in relative]


_ROUNDS = 6


def permute(places: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """A pseudo-random permutation of range(size), evaluated at some places.

    A Feistel network permutes the next power of four; results outside the range walk on along their cycle until they
    are inside, which keeps it a permutation (Black and Rogaway 2002). No table is kept, so a corpus of any size costs
    nothing and any place can be asked first.

    Args:
        places: int64 array of places in range(size).
        size: number of rows.
        seed: the run's seed.
        epoch: each epoch has its own permutation.

    Returns:
        int64 array of rows, of the same shape.

    Raises:
        ValueError: a place is asked for and there is no row, among which the walk would never end.
    """
    if places.size and size < 1:
        raise ValueError(f"a place among {size} rows")
    half = np.uint64(max(1, (int(size - 1).bit_length() + 1) // 2))
    base = mix(np.array([seed % 2**64], np.uint64) + mix(np.array([epoch + 1], np.uint64)))
    keys = mix(base + np.arange(1, _ROUNDS + 1, dtype=np.uint64) * GOLDEN)
    rows = _feistel(places.astype(np.uint64), half, keys)
    while (outside := rows >= size).any():
        rows[outside] = _feistel(rows[outside], half, keys)
    return rows.astype(np.int64)


def _feistel(values: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    low = np.uint64((1 << int(half)) - 1)
    left, right = values >> half, values & low
    for key in keys:
        left, right = right, left ^ (mix(right + key) & low)
    return (left << half) | right


def samples(step: int, rank: int, world: int, global_batch_size: int) -> np.ndarray:
    """The samples of a run that a rank trains on in a step, int64 [global_batch_size / world].

    Step s takes samples [s G, (s + 1) G), rank r of W the r-th of their W equal parts. What sample j is, is a function
    of j alone (`adapt.corpus.sample_order`), so a step's global batch depends neither on W nor on any step before.
    """
    share = global_batch_size // world
    return np.arange(share, dtype=np.int64) + step * global_batch_size + rank * share
