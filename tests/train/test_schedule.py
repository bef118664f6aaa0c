"""Tests the length of a run, the division of its batch, and the learning rate at each step."""

import re
from itertools import pairwise
from math import ceil, cos, pi

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_wsd_schedule,
)

from adapt.config import TrainingConfig
from adapt.support.errors import ConfigError, DataError
from adapt.train.schedule import (
    RunLength,
    branch_step,
    check_head_warmup,
    check_warmup,
    learning_rate,
    length_of,
    micro_batch,
    rows_of,
    worlds,
)


def config(**settings: object) -> TrainingConfig:
    return TrainingConfig(**{"global_batch_size": 10, "sequence_length": 8, **settings})


# --- length: a step is 10 rows of 8 tokens, and an epoch of 125 rows is 12.5 steps


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        ({}, 12_500),
        ({"max_steps": 3}, 3),
        ({"max_steps": 20_000}, 20_000),
        ({"max_tokens": 1}, 1),
        ({"max_tokens": 80}, 1),
        ({"max_tokens": 81}, 2),
        ({"max_tokens": 8000}, 100),
        ({"epochs": 1.0}, 13),
        ({"epochs": 2.0}, 25),
        ({"epochs": 0.001}, 1),
        ({"epochs": 0.5}, 7),
        ({"epochs": 10_000.0}, 125_000),
        ({"max_steps": 20, "epochs": 1.0}, 13),
        ({"max_steps": 5, "epochs": 1.0}, 5),
        ({"max_steps": 20, "max_tokens": 800}, 10),
        ({"max_steps": 9, "max_tokens": 800, "epochs": 1.0}, 9),
        ({"max_steps": 20, "max_tokens": 800, "epochs": 0.1}, 2),
    ],
)
def test_a_run_ends_at_the_first_limit_that_is_reached(limits: dict[str, float], steps: int) -> None:
    assert length_of(config(**limits), 125) == RunLength(steps, 125)


@given(st.integers(1, 10**10), st.integers(1, 5000), st.integers(1, 50))
def test_epochs_cover_every_row(rows: int, batch: int, epochs: int) -> None:
    """The steps cover all rows of all epochs, even if the corpus is smaller than a batch."""
    found = length_of(TrainingConfig(global_batch_size=batch, epochs=float(epochs)), rows)
    assert found.rows == rows
    assert (found.steps - 1) * batch < epochs * rows <= found.steps * batch


@pytest.mark.parametrize(("tokens", "rows"), [(0, 0), (1, 1), (5, 1), (8, 1), (9, 2), (73, 10), (80, 10), (81, 11)])
def test_number_of_rows_of_a_source(tokens: int, rows: int) -> None:
    assert rows_of(tokens, config()) == rows


def test_an_empty_corpus_is_refused() -> None:
    with pytest.raises(DataError, match="no text to train on"):
        length_of(config(), 0)


# --- batch


@given(st.integers(1, 5000), st.integers(1, 64), st.integers(1, 300))
def test_micro_batch_is_the_largest_that_divides(batch: int, workers: int, most: int) -> None:
    training = config(global_batch_size=batch, micro_batch=most)
    if batch % workers:
        with pytest.raises(ConfigError) as caught:
            micro_batch(training, workers)
        offered = [int(number) for number in re.findall(r"\d+", caught.value.fix)]
        around = [batch // workers * workers, (batch // workers + 1) * workers]
        assert offered == [number for number in around if number]
        for number in offered:  # the values that the fix names are accepted
            micro_batch(config(global_batch_size=number, micro_batch=most), workers)
        return
    size, accumulation = micro_batch(training, workers)
    share = batch // workers
    assert size * accumulation * workers == batch
    assert size == max(n for n in range(1, min(most, share) + 1) if share % n == 0)


@pytest.mark.parametrize(
    ("batch", "workers", "most", "expected"),
    [(2048, 1, 8, (8, 256)), (2048, 8, 8, (8, 32)), (6, 1, 4, (3, 2)), (7, 1, 4, (1, 7)), (4, 4, 8, (1, 1))],
)
def test_micro_batch_by_example(batch: int, workers: int, most: int, expected: tuple[int, int]) -> None:
    assert micro_batch(config(global_batch_size=batch, micro_batch=most), workers) == expected


def test_a_batch_that_workers_cannot_share_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"global_batch_size 10 is no multiple of resources\.workers 4") as caught:
        micro_batch(config(), 4)
    assert caught.value.fix == "use 8 or 12, or another number of workers"
    with pytest.raises(ConfigError) as caught:
        micro_batch(config(), 16)
    assert caught.value.fix == "use 16, or another number of workers"


@given(st.integers(1, 2000), st.integers(1, 12), st.integers(0, 12), st.integers(1, 300))
def test_a_range_of_workers_takes_the_same_passes_with_any_number(batch: int, low: int, more: int, most: int) -> None:
    training, ends = config(global_batch_size=batch, micro_batch=most), (low, low + more)
    if any(batch % end for end in ends):
        wrong = rf"no multiple of resources\.workers \d+, an end of the range \[{low}, {ends[1]}\]"
        with pytest.raises(ConfigError, match=wrong) as caught:
            micro_batch(training, ends)
        for number in re.findall(r"\d+", caught.value.fix):  # the values that the fix names are accepted
            micro_batch(config(global_batch_size=int(number), micro_batch=most), ends)
        return
    numbers = [number for number in range(low, ends[1] + 1) if batch % number == 0]
    assert worlds(training, ends) == numbers
    size, passes = micro_batch(training, ends)
    assert size * passes * low == batch
    sizes = [n for n in range(1, min(most, batch) + 1) if all(batch // number % n == 0 for number in numbers)]
    assert size == max(sizes)


def test_a_range_by_example() -> None:
    assert worlds(config(global_batch_size=2048), (2, 8)) == [2, 4, 8]
    assert worlds(config(global_batch_size=12), (3, 3)) == [3]
    assert micro_batch(config(global_batch_size=2048, micro_batch="auto"), (2, 8)) == (256, 4)
    assert micro_batch(config(global_batch_size=12, micro_batch=5), (1, 3)) == (2, 6)
    with pytest.raises(
        ConfigError, match=r"size 8 is no multiple of resources\.workers 3, an end of the range \[1, 3\]"
    ) as caught:
        micro_batch(config(global_batch_size=8), (1, 3))
    assert caught.value.fix == "use 6 or 9, or another number of workers"


# --- learning rate


def rates(steps: int, **settings: object) -> list[float]:
    training = config(**settings)
    return [learning_rate(training, step, steps) for step in range(steps)]


def test_learning_rates_by_example() -> None:
    found = rates(10, learning_rate=1.0, warmup_fraction=0.4)
    assert found == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


@given(st.integers(1, 400), st.floats(0, 1), st.floats(1e-7, 1.0))
def test_rises_to_the_peak_and_falls_to_almost_nothing(steps: int, fraction: float, peak: float) -> None:
    found = rates(steps, learning_rate=peak, warmup_fraction=fraction)
    warmup = ceil(fraction * steps)
    rise, fall = found[:warmup], found[warmup:]
    assert all(0 < rate <= peak * (1 + 1e-12) for rate in found)
    assert max(found) == pytest.approx(peak)
    assert rise == sorted(rise)
    assert fall == sorted(fall, reverse=True)
    if len(rise) > 1:
        steepness = [after - before for before, after in pairwise(rise)]
        assert steepness == pytest.approx([peak / warmup] * len(steepness))
    if fall:
        assert fall[-1] == pytest.approx(peak / len(fall))  # the rate would reach 0 one step after the last step


@pytest.mark.parametrize(
    ("steps", "fraction"), [(100, 0.06), (12_500, 0.06), (10, 0.0), (10, 1.0), (7, 0.5), (1, 0.06)]
)
def test_the_linear_schedule_against_transformers(steps: int, fraction: float) -> None:
    """The decay equals the decay of transformers. Our warm-up is one step ahead, because our rate begins above 0."""
    warmup = ceil(fraction * steps)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=5e-4)
    schedule = get_linear_schedule_with_warmup(optimizer, warmup, steps)
    theirs = []
    for _ in range(steps + 1):
        theirs.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    ours = rates(steps, learning_rate=5e-4, warmup_fraction=fraction)
    assert ours[warmup:] == pytest.approx(theirs[warmup:steps])
    if warmup:
        assert theirs[0] == 0
        # without a decay, the rate of transformers is already 0 at the last step
        peak = [5e-4] if warmup == steps else []
        assert ours[:warmup] == pytest.approx([*theirs[1:warmup], *(peak or theirs[warmup : warmup + 1])])


# --- the other schedules


@given(st.integers(1, 300), st.floats(0, 0.9), st.floats(0, 1), st.floats(0, 1))
def test_schedules_in_closed_form(steps: int, warmup_fraction: float, cooldown: float, floor: float) -> None:
    """Compares each schedule with its formula at every step, in units of the peak rate."""
    warmup = ceil(warmup_fraction * steps)
    given_ = {"learning_rate": 1.0, "warmup_fraction": warmup_fraction, "floor_fraction": floor}
    after = [(step - warmup) / (steps - warmup) for step in range(warmup, steps)]
    expected = {
        "linear": [1 - (1 - floor) * done for done in after],
        "cosine": [floor + (1 - floor) * cos(pi / 2 * done) ** 2 for done in after],
        "constant": [1.0 for _ in after],
    }
    for schedule, fall in expected.items():
        assert rates(steps, schedule=schedule, **given_) == pytest.approx(
            [(step + 1) / warmup for step in range(warmup)] + fall
        )
    start = max(warmup, steps - round(cooldown * steps))
    stable = rates(steps, schedule="wsd", cooldown_fraction=cooldown, **given_)
    assert stable[:start] == pytest.approx([min(1, (step + 1) / warmup) if warmup else 1 for step in range(start)])
    assert stable[start:] == pytest.approx([1 - (1 - floor) * n / (steps - start) for n in range(steps - start)])


def test_wsd_by_example() -> None:
    found = rates(10, schedule="wsd", learning_rate=1.0, warmup_steps=2, cooldown_fraction=0.4, floor_fraction=0.2)
    assert found == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4])
    assert branch_step(config(schedule="wsd", warmup_steps=2, cooldown_fraction=0.4), 10) == 6
    assert branch_step(config(schedule="linear"), 10) is None
    assert branch_step(config(schedule="wsd", warmup_fraction=0.0, cooldown_fraction=1.0), 10) is None


@pytest.mark.parametrize(("decay", "theirs"), [("one_minus_sqrt", "1-sqrt"), ("cosine", "cosine")])
def test_the_decay_of_wsd_against_transformers(decay: str, theirs: str) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = get_wsd_schedule(optimizer, 2, 12, 20, decay_type=theirs, min_lr_ratio=0.1)
    expected = []
    for _ in range(20):
        expected.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    given_ = {"warmup_steps": 2, "cooldown_fraction": 0.6, "floor_fraction": 0.1, "learning_rate": 1.0}
    assert rates(20, schedule="wsd", decay=decay, **given_)[2:] == pytest.approx(expected[2:])


@given(st.integers(1, 200), st.integers(0, 200), st.integers(0, 400), st.floats(0, 1))
def test_a_longer_run_has_the_same_rates_up_to_its_cooldown(
    steps: int, warmup: int, more: int, cooldown: float
) -> None:
    """The rates are exactly equal, so that a longer run can continue from the branch."""
    settings = {"schedule": "wsd", "warmup_steps": min(warmup, steps), "cooldown_fraction": cooldown}
    start = branch_step(config(**settings), steps) or 0
    assert rates(steps, **settings)[:start] == rates(steps + more, **settings)[:start]


@pytest.mark.parametrize("schedule", ["cosine", "constant", "wsd"])
def test_the_other_schedules_against_transformers(schedule: str) -> None:
    """Rates after the warm-up equal transformers' rates. Transformers' warm-up is one step behind ours."""
    warmup, steps, cooldown = 6, 60, 15
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=5e-4)
    theirs = {
        "cosine": lambda: get_cosine_schedule_with_warmup(optimizer, warmup, steps),
        "constant": lambda: get_constant_schedule_with_warmup(optimizer, warmup),
        "wsd": lambda: get_wsd_schedule(optimizer, warmup, cooldown, steps, decay_type="linear", min_lr_ratio=0.1),
    }[schedule]()
    expected = []
    for _ in range(steps):
        expected.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    floor = {"floor_fraction": 0.1} if schedule == "wsd" else {}
    ours = rates(steps, learning_rate=5e-4, schedule=schedule, warmup_steps=warmup, cooldown_fraction=0.25, **floor)
    assert ours[warmup:] == pytest.approx(expected[warmup:])
    if schedule != "wsd":  # the warm-up of transformers' wsd begins at the floor
        assert ours[: warmup - 1] == pytest.approx(expected[1:warmup])


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    training = config(warmup_steps=11)
    check_warmup(training, 11)
    with pytest.raises(ConfigError, match=r"training\.warmup_steps 11 is longer than the run of 10 steps") as caught:
        check_warmup(training, 10)
    assert caught.value.fix == "use at most 10, or a longer run"
    check_warmup(config(warmup_fraction=1.0), 10)
    assert (
        rates(4, warmup_steps=0, warmup_fraction=1.0, learning_rate=1.0)[0] == 1
    )  # warmup_steps takes precedence over the fraction


def test_a_head_warm_up_must_end_within_the_run() -> None:
    check_head_warmup(9, 10)
    check_head_warmup(0, 1)
    with pytest.raises(ConfigError, match=r"model\.head_warmup_steps is 10, but the run has 10 steps"):
        check_head_warmup(10, 10)
