"""Compares ASHA with random search at equal budget, and measures the time until a stopped trial's workers are free.

The two searches are compared by their losses after the same number of steps, not by time, so they do not alternate. The
time from a stop until the workers are free is compared only with an upper bound. The range of this time covers all
stops; the time is *noisy* if processes waited for cores while ASHA ran (`benchmarks.rounds`).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from benchmarks.rounds import Ratio, Watch

SAMPLES, FEWER = 27, 3
"""Number of ASHA's trials without and with `--quick`, in addition to the trial of the untuned configuration."""
REDUCTION, TURNS, FEWER_TURNS = 3, 3, 2


@dataclass(frozen=True)
class Halving:
    """Losses, numbers of steps and waiting times of ASHA and of random search."""

    asha: float
    """Lowest dev loss that ASHA found. The field `random` is the lowest dev loss that random search found."""
    random: float
    asha_steps: int
    """Total number of steps of ASHA's trials, without the trial of the untuned configuration. The field
    `random_steps` is the number for random search."""
    random_steps: int
    random_trials: int
    stop_to_free_s: Ratio
    """Seconds from each stop of a trial by the scheduler until all cores were free. Each stop counts as a round."""


def halving(arguments: Sequence[str], steps: int, quick: bool) -> Halving:
    """Runs ASHA, then random search with as many steps as ASHA took. Both searches draw the same trials.

    Args:
        arguments: arguments of `dontstop tune`.
        steps: number of steps of a trial that is not stopped.
        quick: whether to run fewer trials.
    """
    import ray

    turns = FEWER_TURNS if quick else TURNS
    common = [*arguments, f"--training.max_steps={steps}", "--training.schedule=wsd", "--training.warmup_steps=1"]
    judged = ["--tune.scheduler=asha", f"--tune.turns={turns}", f"--tune.reduction={REDUCTION}", "--tune.at_once=1"]
    waits: list[float] = []
    watch = Watch()
    with _timed_stops(waits):
        asha, branches = _found([*common, *judged, f"--tune.samples={FEWER if quick else SAMPLES}"])
    is_noisy = watch.stop().is_noisy
    taken = sum(_steps(row, branches) for row in asha["trials"] if row["number"])
    trials = max(1, round(taken / steps))
    random, _ = _found([*common, f"--tune.samples={trials}"])
    ray.shutdown()
    return Halving(
        _best(asha), _best(random), taken, trials * steps, trials, Ratio(tuple(waits), len(waits) * is_noisy)
    )


def _found(arguments: Sequence[str]) -> tuple[dict[str, Any], dict[int, int]]:
    """Runs a search. Returns its metrics, and the step where longer trials branch off, keyed by trial length."""
    from adapt.runner import Store, ensure
    from adapt.stage.context import root_of
    from adapt.train.schedule import branch_step
    from adapt.tuning.proposals import lengths_of, steps_after
    from adapt.tuning.search_run import search_of_command

    search = search_of_command(arguments)
    metrics = dict(ensure(search, Store(root_of(search.config))).record.metrics)
    lengths = [steps_after(search.config, turn) for turn in range(len(lengths_of(search.config.tune)))]
    return metrics, {length: branch_step(search.config.training, length) or 0 for length in lengths if length}


def _steps(row: Mapping[str, Any], branches: Mapping[int, int]) -> int:
    """Returns the total steps of a trial. Each longer run branches off where the shorter run's cooldown began."""
    lengths = sorted(map(int, row["turns"]))
    return sum(
        length - (branches[before] if before else 0) for before, length in zip([0, *lengths], lengths, strict=False)
    )


def _best(metrics: Mapping[str, Any]) -> float:
    (objective,) = metrics["objectives"]
    best = next(row for row in metrics["trials"] if row["number"] == metrics["best"])
    return float(best["figures"][objective]["value"])


@contextmanager
def _timed_stops(waits: list[float]) -> Iterator[None]:
    """Records the seconds from each stop of a trial until all cores are free. Ray Tune waits during this time."""
    import ray

    from adapt.tuning.ray_tune import Board

    end = Board.end

    def timed(board: Board, number: int) -> None:
        began = time.perf_counter()
        end(board, number)
        if number and (number, board.turns - 1) not in board.heard:
            while ray.available_resources().get("CPU", 0) < ray.cluster_resources()["CPU"]:
                time.sleep(0.02)
            waits.append(time.perf_counter() - began)

    with patch.object(Board, "end", timed):
        yield
