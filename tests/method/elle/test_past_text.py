"""Tests that rows of past text are drawn more often from domains whose loss has fallen more."""

from pathlib import Path

import numpy as np
import pytest

from adapt.corpus.token_shards import write_shard
from adapt.method.elle.past_text import EVEN, WINDOW, PastText, fall_of

LENGTH = 12


def text_folder(folder: Path, number: int) -> Path:
    """Writes prepared text of a domain with 9 * `number` documents."""
    draw = np.random.default_rng(number)
    documents = [draw.integers(5, 61, draw.integers(3, 20)).tolist() for _ in range(9 * number)]
    write_shard(folder / "train-00000.arrow", documents, 61)
    return folder


@pytest.fixture
def past(tmp_path: Path) -> PastText:
    folders = {name: tmp_path / name for name in "ab"}
    for number, folder in enumerate(folders.values(), start=1):
        folder.mkdir()
        text_folder(folder, number)
    return PastText(folders)


def test_domains_are_drawn_in_proportion_to_their_loss_reduction(past: PastText) -> None:
    for name, losses in {"a": [5.0, 4.0, 3.0, 2.0], "b": [5.0, 4.5, 4.0, 3.5]}.items():
        for loss in losses:
            past.note(name, loss)
    assert fall_of([5.0, 4.0, 3.0, 2.0]) == 2.0
    assert past.shares() == pytest.approx({"a": (1 - EVEN) * 2 / 3 + EVEN / 2, "b": (1 - EVEN) / 3 + EVEN / 2})
    drawn = [past.rows(1, slice(0, 1), LENGTH, (), (3, step))[0] for step in range(2000)]
    assert drawn.count("a") / 2000 == pytest.approx(past.shares()["a"], abs=0.03)


def test_domains_without_losses_come_first(past: PastText) -> None:
    assert past.shares() == {"a": 0.5, "b": 0.5}
    past.note("a", 3.0)
    assert past.shares() == {"a": 0.0, "b": 1.0}


def test_rising_losses_give_even_draws_and_old_losses_are_dropped(past: PastText) -> None:
    for step in range(2 * WINDOW):
        past.note("a", 9.0 - step if step < WINDOW else 1.0)
        past.note("b", 1.0 + step)
    assert past.losses["a"] == [1.0] * WINDOW
    assert past.shares() == {"a": 0.5, "b": 0.5}


def test_ranks_divide_the_drawn_rows(past: PastText) -> None:
    """The ranks together get exactly the rows that are drawn for a step. Seed and step determine the draw."""
    name, whole = past.rows(6, slice(0, None), LENGTH, (), (1, 7))
    parts = [past.rows(6, slice(rank, None, 2), LENGTH, (), (1, 7)) for rank in range(2)]
    assert {each for each, _ in parts} == {name}
    assert sorted(whole.rows.tolist()) == sorted([*parts[0][1].rows.tolist(), *parts[1][1].rows.tolist()])
    assert whole.tokens.shape == (6, LENGTH)
    assert whole.epochs.tolist() == [7] * 6
    assert not np.array_equal(past.rows(6, slice(0, None), LENGTH, (), (1, 8))[1].rows, whole.rows)


def test_losses_that_are_not_finite_are_left_out(past: PastText) -> None:
    for loss in (float("inf"), 3.0, float("nan"), 2.0):
        past.note("a", loss)
        past.note("b", 1.0)
    assert past.losses["a"] == [3.0, 2.0]
    assert sum(past.shares().values()) == pytest.approx(1)
