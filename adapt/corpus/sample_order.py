"""Maps sample j of a run to a row of a source, in constant time and memory. The result depends only on (seed, j).

Rows are permuted by (seed, epoch) without a table. Sources form groups. Within a group, every row comes once per epoch,
either shuffled over all its sources or one source after another. After the last row of a group, the group's next epoch
begins.

The run is divided among the groups by slots: a period has 1,000 slots (more if there are more than 100 groups), and
each group has a fixed number of slots per period. The slots of each period are permuted separately. So in the first n
samples of a run, for any n, each group has its share to within one period, and the n-th sample of a group is computed
without earlier samples.

If the share of general text increases or decreases along a run, the run is cut into phases of whole periods. Each phase
has its own numbers of slots, and the number of a group's samples before a period is still computed directly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import ceil, floor
from typing import NamedTuple

import numpy as np

from adapt.config import MixtureConfig
from adapt.support.splitmix import GOLDEN, mix

_PART = 1 << 20
"""Number of positions that are permuted at once when rows are counted."""


class Places(NamedTuple):
    """The source, epoch and row of samples, int64 [samples] each."""

    sources: np.ndarray
    """Index of the source, in the order in which the sources are listed."""
    epochs: np.ndarray
    """Number of complete passes that the run has made over the rows of the source's group before this sample."""
    rows: np.ndarray
    """Index of the row within the source."""


@dataclass(frozen=True)
class Group:
    """Sources that share their epochs: each row of all these sources is used once before any row is used again."""

    sources: tuple[int, ...]
    """Indices of the sources in this group."""
    rows: tuple[int, ...]
    """Number of rows of each source."""
    in_turn: bool = False
    """Whether the sources follow one another in the listed order, each shuffled separately. If False, the rows of all
    sources are shuffled together."""

    @cached_property
    def total(self) -> int:
        """Number of rows of all sources of the group, which is the length of its epoch."""
        return sum(self.rows)

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.array([0, *accumulate(self.rows)], np.int64)

    def locate(self, numbers: np.ndarray, seed: int) -> Places:
        """Returns the source, epoch and row of samples of the group, given their numbers within the group.

        The group must have at least one row if `numbers` is not empty.
        """
        epochs, places = np.divmod(numbers, self.total)
        if not self.in_turn:
            places = _permuted(epochs, places, self.total, seed)
        owners = np.searchsorted(self._starts, places, side="right") - 1  # side "right" skips empty sources
        rows = places - self._starts[owners]
        if self.in_turn:
            for owner in np.unique(owners):
                here = owners == owner
                rows[here] = _permuted(epochs[here], rows[here], self.rows[owner], seed + int(owner))
        return Places(np.array(self.sources, np.int64)[owners], epochs, rows)

    def drawn(self, count: int, seed: int) -> np.ndarray:
        """Counts the rows of each source in the first `count` samples of the group, int64 [sources of the group].

        Whole epochs need no search. For an unfinished epoch, the samples are permuted and counted, unless the sources
        come in turn.
        """
        if not count:
            return np.zeros(len(self.rows), np.int64)  # this case includes groups without rows, which have no epochs
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
    """Applies `permute` to positions of several epochs."""
    permuted = np.empty_like(places)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        permuted[here] = permute(places[here], size, seed, int(epoch))
    return permuted


MOST_PHASES = 1000
"""Maximum number of phases into which a run is cut if the share of general text changes during the run."""


@dataclass(frozen=True)
class Slots:
    """For each phase of a run, the number of slots (samples) that each group of sources gets per period."""

    phases: tuple[tuple[int, ...], ...]
    """Number of slots per period of each group in each phase, [phases, groups]. The last phase never ends."""
    lasting: int = 1
    """Length of a phase [periods]."""

    @classmethod
    def of(cls, shares_at: Callable[[float], Sequence[float]], period: int, periods: int | None) -> "Slots":
        """Computes each group's number of slots from the share of samples that the group should have.

        Args:
            shares_at: returns the groups' shares, which sum to 1, at a position in the run from 0 (start) to 1 (end).
            period: length of a period [samples].
            periods: length of the run [periods]. If None, there is one phase with the shares at the middle of the run.
        """
        count = min(periods, MOST_PHASES) if periods else 1
        places = [(phase + 0.5) / count for phase in range(count)]
        phases = tuple(largest_remainder(shares_at(place), period) for place in places)
        return cls(phases, ceil(periods / count) if periods else 1)

    @cached_property
    def _sums(self) -> np.ndarray:
        """Number of samples of each group before each phase, int64 [phases, groups]."""
        table = np.array(self.phases, np.int64) * self.lasting
        sums: np.ndarray = np.cumsum(table, axis=0) - table
        return sums

    def _phase(self, period: int) -> int:
        return min(period // self.lasting, len(self.phases) - 1)

    def at(self, period: int) -> np.ndarray:
        """Returns the number of slots of each group in a period, int64 [groups]."""
        return np.array(self.phases[self._phase(period)], np.int64)

    def before(self, period: int) -> np.ndarray:
        """Returns the number of samples of each group before a period, int64 [groups]."""
        phase = self._phase(period)
        before: np.ndarray = self._sums[phase] + (period - phase * self.lasting) * self.at(period)
        return before


def largest_remainder(shares: Sequence[float], total: int) -> tuple[int, ...]:
    """Divides `total` into whole numbers in proportion to shares that sum to 1, with at least one per share above 0.

    Hamilton's method is used: all numbers are rounded down, and the numbers with the largest remainders get one more.
    """
    counts = [max(share > 0, floor(share * total)) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - shares[i] * total, i))
    for rank in range(total - sum(counts)):
        counts[by_remainder[rank]] += 1
    while sum(counts) > total:  # lowers the largest numbers, because small numbers were raised to 1
        counts[counts.index(max(counts))] -= 1
    return tuple(counts)


DEFAULT = MixtureConfig()
SLOTS = 1000
"""Minimum length of a period [samples]. At this length, shares are rounded to thousandths."""
SLOTS_PER_GROUP = 10
"""Minimum length of a period as a multiple of the number of groups [slots per group]. Every group has at least one
slot, so in a short period a group with a tiny share would reduce the shares of the other groups."""
_LEAST = 1e-300
"""Lower limit of the relative weight of a source whose weight is above 0. Without this limit, a tiny weight could be
rounded to 0, and the source would silently be left out."""
_SEED_STRIDE = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Mixture:
    """The sources of a run, in groups, and the share of each group in the samples of the run."""

    groups: tuple[Group, ...]
    slots: tuple[int, ...]
    """Number of slots (samples) that each group of sources gets per period."""
    seed: int
    beside: int = 0
    """Number of groups that contain text of past domains or general text. They are the last groups of `groups`."""
    changing: Slots | None = None
    """Slots of each phase if the share of general text changes along the run, else None. If the share changes, the
    field `slots` has the numbers for the middle of the run."""
    first_general: int | None = None
    """First row number (see `numbers`) of general text; None if the run has no general text."""
    ahead: tuple[int, ...] = ()
    """Number of samples that each group has used in earlier parts of the run beyond the number that its present slots
    would give. Groups may have had other shares there. Empty if the run has no earlier parts."""
    numbering: tuple[int, ...] = ()
    """Number of rows per source that the method `numbers` assumes. In a run that changes the row length, this is the
    number at the shortest length. If empty, the method assumes the actual numbers, `rows`."""

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
        """Builds the mixture of some sources.

        Args:
            rows: number of rows of each source of the domain.
            seed: seed of the run.
            config: settings of the mixture.
            weights: relative share of each source of the domain, with a sum above 0; None for shares in proportion to
                the numbers of rows.
            replay: number of rows of each source of general text. These sources come after all others.
            recalled: number of rows of each text of past domains. These texts come after the domain's sources.
            recalled_fraction: share of texts of past domains in the run.
            samples: length of the run [samples], over which the share of general text goes from `replay_fraction` to
                `replay_last`; None if the length is not known or the share does not change.
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
        """Length of a period [samples], in which every group of sources uses each of its slots once."""
        return sum(self.slots)

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Number of rows of each source."""
        return tuple(rows for group in self.groups for rows in group.rows)

    @cached_property
    def _offsets(self) -> np.ndarray:
        return np.array([0, *accumulate(self.numbering or self.rows)][:-1], np.int64)

    def locate(self, samples: np.ndarray) -> Places:
        """Returns the source, epoch and row of samples, given their numbers in the run, int64 [samples]."""
        groups, numbers = self._slots_of(samples)
        places = Places(*(np.empty_like(samples) for _ in Places._fields))
        for number, group in enumerate(self.groups):
            here = groups == number
            for column, values in zip(places, group.locate(numbers[here], self._seed_of(number)), strict=True):
                column[here] = values
        return places

    def numbers(self, places: Places) -> np.ndarray:
        """Returns the number of each sample's row, counted over the rows of all sources, int64 [samples].

        This number is part of the seed of all random choices for a row, such as its masks.
        """
        numbers: np.ndarray = self._offsets[places.sources] + places.rows
        return numbers

    def drawn(self, samples: int, since: int = 0) -> list[int]:
        """Counts the rows of each source among the samples [since, samples) of a run."""
        ends, begins = self._counts(samples), self._counts(since)
        parts = [
            group.drawn(ends[n], self._seed_of(n)) - group.drawn(begins[n], self._seed_of(n))
            for n, group in enumerate(self.groups)
        ]
        return [int(rows) for part in parts for rows in part]

    def numbered(self, rows: Sequence[int]) -> "Mixture":
        """Returns a copy of this mixture in which the method `numbers` assumes the given numbers of rows per source."""
        general = None if self.first_general is None else sum(rows[: -len(self.groups[-1].sources)])
        return replace(self, numbering=tuple(rows), first_general=general)

    def going_on(self, sample: int, drawn: Sequence[int]) -> "Mixture":
        """Returns this mixture for the part of a run from `sample` on, if earlier parts used other mixtures.

        Each group continues after the rows that were drawn from its sources, so no row is repeated before every row of
        the group was used once. This does not hold if the parts group the sources differently, because only some of
        them have sampling weights. If the earlier parts used the same mixture, the order of samples does not change.

        Args:
            sample: number of the first sample of the part.
            drawn: number of rows of each source that were drawn before.
        """
        counts = replace(self, ahead=())._counts(sample)
        begun = [sum(drawn[source] for source in group.sources) for group in self.groups]
        return replace(self, ahead=tuple(rows - count for rows, count in zip(begun, counts, strict=True)))

    @property
    def epoch(self) -> int:
        """Number of samples after which the number of domain rows used equals the number of rows in the domain."""
        everyone = list(zip(self.groups, self.slots, strict=True))
        domain = [(group.total, slots) for group, slots in everyone[: len(everyone) - self.beside] if slots]
        rows, slots = sum(rows for rows, _ in domain), sum(slots for _, slots in domain)
        return -(-rows * self.period // slots)

    def _slots_of(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the group of each sample, and the number of the sample within its group."""
        periods, places = np.divmod(samples, self.period)
        groups, numbers = np.empty_like(samples), np.empty_like(samples)
        for period in np.unique(periods):
            here = periods == period
            pattern, ranks = self._pattern(int(period))
            groups[here] = pattern[places[here]]
            numbers[here] = self._periods.before(int(period))[groups[here]] + ranks[places[here]]
        return groups, numbers + np.array(self.ahead, np.int64)[groups] if self.ahead else numbers

    @cached_property
    def _periods(self) -> Slots:
        return self.changing or Slots((self.slots,))

    def _pattern(self, period: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the group of each slot of a period, and the number of earlier slots of that group, int64 [period]."""
        slots = self._periods.at(period)
        ends = np.cumsum(slots)
        places = np.arange(self.period)
        groups = np.searchsorted(ends, permute(places, self.period, self._seed_of(-1), period), side="right")
        ranks = np.empty_like(places)
        ranks[np.argsort(groups, kind="stable")] = places
        return groups, ranks - (ends - slots)[groups]

    def _counts(self, samples: int) -> list[int]:
        """Counts the samples of each group among the first samples of a run."""
        period, rest = divmod(samples, self.period)
        part = np.bincount(self._pattern(period)[0][:rest], minlength=len(self.groups))
        counts = self._periods.before(period) + part + np.array(self.ahead or [0], np.int64)
        return [int(number) for number in counts]

    def _seed_of(self, number: int) -> int:
        """Returns the seed of group `number`. The number -1 gives the seed of the order of slots.

        Each group has its own seed, so that groups of equal size are shuffled differently.
        """
        return self.seed + number * _SEED_STRIDE


def replay_shares(config: MixtureConfig) -> tuple[float, float]:
    """Returns the share of general text at the beginning of a run and the share at its end."""
    last = config.replay_last
    return config.replay_fraction, config.replay_fraction if last is None else last


def share_changes(config: MixtureConfig) -> bool:
    """Returns whether the share of general text changes along a run. If so, the run's length affects the order."""
    begins, ends = replay_shares(config)
    return begins != ends


def proportions(weights: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Returns shares in proportion to weights^(1 / temperature). Higher temperatures make the shares more even.

    If a weight is above 0, so is its share. The formula is used by Devlin et al. 2019 (exponentially smoothed weighting
    in multilingual BERT) and Arivazhagan et al. (arXiv 1907.05019).
    """
    most = max(weights)  # weights are divided by the largest, because powers of large numbers would overflow
    relative = [max((weight / most) ** (1 / temperature), _LEAST) if weight else 0.0 for weight in weights]
    total = sum(relative)
    return [weight / total for weight in relative]


_ROUNDS = 6


def permute(places: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """Evaluates a pseudo-random permutation of range(size) at some positions.

    A Feistel network permutes range(next power of four). A result outside range(size) is permuted again until it is
    inside, so the results are a permutation of range(size) (Black and Rogaway 2002). No table is needed, so memory does
    not grow with `size`, and positions can be evaluated in any order.

    Args:
        places: int64 array of positions in range(size).
        size: number of rows.
        seed: seed of the run.
        epoch: number of the epoch; each epoch has its own permutation.

    Returns:
        int64 array of rows, with the shape of `places`.

    Raises:
        ValueError: `size` is 0 and `places` is not empty.
    """
    if places.size and size < 1:
        raise ValueError(f"cannot permute positions among {size} rows")
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
    """Returns the numbers of the samples that a rank trains on in a step, int64 [global_batch_size / world].

    Step s takes the samples [s G, (s + 1) G) for a global batch of size G. Rank r of W takes part r of W equal parts. A
    sample depends only on its number, so a step's global batch depends neither on W nor on earlier steps.
    """
    share = global_batch_size // world
    return np.arange(share, dtype=np.int64) + step * global_batch_size + rank * share
