"""Mixtures: which row of which source is sample j of a run. A function of (seed, j), in constant time and memory.

Sources form groups. Within a group every row comes once an epoch, shuffled together or one source after another; what
runs out starts again. Groups share the run by a pattern of slots, 1,000 where they are few, of which each has a fixed
number (one that grows or falls from period to period, where the share of general text does); the slots of every period
are permuted anew. So in each prefix of a run every group has its share to within one period, and the n-th sample of a
group is found without those before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from adapt.config import MixtureConfig
from adapt.corpus.batches.group import Group, Places
from adapt.corpus.batches.order import permute
from adapt.corpus.batches.slots import Slots

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
