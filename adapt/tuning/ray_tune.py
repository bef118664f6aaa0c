"""Connects to Ray Tune, which requests proposals, limits the number of running trials, and stops trials early.

The stages of trials do not run in Tune's processes. For each trial, Tune starts a process that requests the trial's
result from a mailbox and waits for it. This process reserves no core and no GPU, so it cannot block stages. A stage
that two trials share runs once.
"""

import asyncio
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler, MedianStoppingRule
from ray.tune.search import Searcher

from adapt.config import TuneConfig
from adapt.ray.runtime import hush, user_errors
from adapt.tuning.proposals import Proposals, Values, lengths_of

Answer = Mapping[str, float] | None
"""Values of a trial's objectives, keyed by name; None if the trial failed."""
Asked = tuple[int, int]
"""A turn of a trial: the number of the trial and the number of the turn, both from 0. With a scheduler, a trial has
several turns: it is measured after each turn, and the scheduler decides whether it continues."""
AS_IT_IS = 0
"""Number of the trial with the unchanged configuration. The numbers of proposed trials start at 1."""
TURN = "turn"
"""Name of the reported length of a trial so far (`Board.lengths`). Tune's schedulers use this length as time."""
GOES_ON = "free memory on the machines, then run the same command: the search continues where it stopped"
DEATHS = 3
"""Maximum number of times that the waiting process of a trial is restarted after it died."""
TO_END_S = 30.0
"""Maximum time that a failed search waits until Tune has ended its processes [s]."""


@dataclass
class Board:
    """The proposals and results of all trials. Tune's thread adds proposals, and the main thread adds results."""

    proposals: Proposals
    objectives: list[str]
    may_begin: Callable[[int], bool | None]
    """Function that returns whether the budget allows the trial with the given number; None if not known yet."""
    lengths: list[int] = field(default_factory=lambda: [1])
    """Length of a trial at each measurement, in multiples of the first length. Trial 0 is measured only at the end."""
    values: list[Values] = field(default_factory=lambda: [{}])
    """Values of each trial. The entry of trial 0, the unchanged configuration, is empty."""
    heard: dict[Asked, Answer] = field(default_factory=dict)
    """Results so far, keyed by trial and turn. A trial is measured at the end of each of its parts (turns)."""
    answers: dict[int, Answer] = field(default_factory=dict)
    """Last results of finished trials, keyed by trial number."""
    is_over: bool = False
    """Whether an error has ended the search, so that no more trials are proposed."""

    @property
    def turns(self) -> int:
        """Number of times that a trial is measured, which is 1 without a scheduler."""
        return len(self.lengths)

    def next(self) -> int | None:
        """Proposes the next trial, and returns the trial's number.

        Returns None while the proposal, or the forecast of the trial's cost, must wait for results of earlier trials.

        Raises:
            StopIteration: all trials are proposed, the budget allows no further trial, or an error has ended the
                search.
        """
        number = len(self.values)
        if self.is_over or number > self.proposals.count:
            raise StopIteration
        needed = range(1, self.proposals.told(number - 1) + 1)
        if not all(earlier in self.answers for earlier in needed):
            return None
        may = self.may_begin(number)
        if may is None:
            return None
        if not may:
            raise StopIteration
        known = [self._objectives(self.answers[earlier]) for earlier in needed]
        self.values.append(self.proposals.propose(self.values[1:], known))
        return number

    def end(self, number: int) -> None:
        """Records that a trial has ended. Its last measurement becomes its result."""
        heard = [self.heard[number, turn] for turn in range(self.turns) if (number, turn) in self.heard]
        if heard:
            self.answers[number] = heard[-1]

    def _objectives(self, answer: Answer) -> list[float] | None:
        return None if answer is None else [answer[name] for name in self.objectives]


def scheduler_of(tune: TuneConfig, is_lower_better: bool) -> Any:
    """Returns the configured scheduler of Ray Tune; None if there is none."""
    judged: dict[str, Any] = {
        "time_attr": TURN,
        "metric": tune.objectives[0],
        "mode": "min" if is_lower_better else "max",
        "grace_period": 1,
    }
    if tune.scheduler == "asha":
        return AsyncHyperBandScheduler(**judged, max_t=lengths_of(tune)[-1], reduction_factor=tune.reduction)
    return MedianStoppingRule(**judged) if tune.scheduler == "median" else None


def dispatch(
    board: Board,
    at_once: int,
    scheduler: Any,
    begin: Callable[[Asked], None],
    look: Callable[[], Mapping[Asked, Answer]],
) -> None:
    """Runs all trials.

    Args:
        board: proposals and results of the trials.
        at_once: maximum number of trials that run at the same time.
        scheduler: scheduler of Ray Tune; None if every trial runs to its end.
        begin: called when a turn (a part of a trial, after which the trial is measured) begins.
        look: called repeatedly; returns the results of the turns that have ended since the last call.

    Raises:
        AdaptError: an error of `begin` or `look`; or a machine ran out of memory and Ray killed the waiting processes.
    """
    mailbox: Any = ray.remote(num_cpus=0)(_Mailbox).remote()
    errors: list[BaseException] = []
    with tempfile.TemporaryDirectory(prefix="dontstop-tune-", ignore_cleanup_errors=True) as scratch:
        given = (board, at_once, scheduler, mailbox, scratch, errors)
        thread = threading.Thread(target=run_tune, args=given, name="tune", daemon=True)
        thread.start()  # runs in a thread, because in the main thread Tune replaces signal handlers
        try:
            while thread.is_alive():
                with user_errors(GOES_ON):
                    taken = ray.get(mailbox.take.remote())
                for asked in taken:
                    begin(asked)
                for asked, answer in look().items():
                    board.heard[asked] = answer
                    mailbox.answer.remote(asked, answer)
                thread.join(0.05)
        except BaseException:
            board.is_over = True
            mailbox.close.remote()
            thread.join(TO_END_S)  # A thread that uses Ray crashes when this process shuts Ray down.
            raise
    if errors:
        with user_errors(GOES_ON):
            raise errors[0]
    _leftover(board, begin, look)


def _leftover(board: Board, begin: Callable[[Asked], None], look: Callable[[], Mapping[Asked, Answer]]) -> None:
    """Runs the trials whose waiting processes died too often. Each trial ends at its first measurement.

    Only trial 0 runs completely, because it is only measured at its end.
    """
    left = [number for number in range(len(board.values)) if number not in board.answers]
    first = {number: (number, 0 if number != AS_IT_IS else board.turns - 1) for number in left}
    for asked in first.values():
        begin(asked)
    while not board.heard.keys() >= {*first.values()}:
        board.heard |= look()
    for number in left:
        board.end(number)


def run_tune(
    board: Board, at_once: int, scheduler: Any, mailbox: Any, scratch: str, errors: list[BaseException]
) -> None:
    """Runs Ray Tune, in a thread. Tune's own files are temporary, because all results are also in the store."""
    hush()
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # Ray's new output prints a message even with verbose=0
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"  # turns off Tune's own log files, which nobody reads
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # Tune must accept failed trials, which report no metrics
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    asked = tune.with_parameters(_asks, mailbox=mailbox)
    settings = tune.TuneConfig(
        search_alg=_InOrder(board),
        scheduler=scheduler,
        num_samples=-1,
        max_concurrent_trials=at_once,
        reuse_actors=True,
    )
    again = tune.FailureConfig(max_failures=DEATHS)
    run = tune.RunConfig(storage_path=scratch, name="trials", verbose=0, failure_config=again)
    try:
        tune.Tuner(tune.with_resources(asked, _resources_to_wait()), tune_config=settings, run_config=run).fit()
    except BaseException as error:
        errors.append(error)


def _resources_to_wait() -> dict[str, float]:
    """Returns the resources of a waiting process: a tiny share of the driver's node, as Tune does not allow zero."""
    here = ray.get_runtime_context().get_node_id()
    (address,) = [node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here]
    return {f"node:{address}": 0.001}


def _asks(config: dict[str, Any], mailbox: Any) -> None:
    """Requests the result of each turn (a part of a trial) from the mailbox, and reports the result to Tune.

    To stop the trial early, Tune ends this process after a report.
    """
    for turn in config["turns"]:
        answer = ray.get(mailbox.ask.remote((config["number"], turn)))
        if answer is None:
            return
        tune.report({**answer, TURN: config["lengths"][turn]})


class _Mailbox:
    """A Ray actor that passes requests and results between Tune's waiting processes and the driver."""

    def __init__(self) -> None:
        self._asked: list[Asked] = []
        self._answers: dict[Asked, asyncio.Future[Answer]] = {}
        self._is_closed = False

    def _answer_to(self, asked: Asked) -> "asyncio.Future[Answer]":
        return self._answers.setdefault(asked, asyncio.get_running_loop().create_future())

    async def ask(self, asked: Asked) -> Answer:
        if self._is_closed:
            return None
        self._asked.append(asked)
        return await asyncio.shield(self._answer_to(asked))  # shielded: a restarted process may await it again

    async def take(self) -> list[Asked]:
        taken, self._asked = self._asked, []
        return taken

    async def answer(self, asked: Asked, answer: Answer) -> None:
        if not (waiting := self._answer_to(asked)).done():
            waiting.set_result(answer)

    async def close(self) -> None:
        """Answers all present and future requests with None, which ends the processes that wait for an answer."""
        self._is_closed = True
        for asked in list(self._answers):
            await self.answer(asked, None)


class _InOrder(Searcher):
    """The search algorithm that Tune calls. It returns the trials that the search proposes, in order."""

    def __init__(self, board: Board) -> None:
        super().__init__(metric=board.objectives[0], mode="max")
        self._board = board
        self._numbers: dict[str, int] = {}
        """Numbers of the trials, keyed by Tune's trial id."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # leaves out the board, because Tune pickles this object and the board cannot leave this process

    def suggest(self, trial_id: str) -> Any:
        """Returns the next trial's number, turns (see `Asked`) and lengths; None if it must wait for results."""
        try:
            number = self._board.next() if self._numbers else AS_IT_IS
        except StopIteration:
            return Searcher.FINISHED
        if number is None:
            return None
        self._numbers[trial_id] = number
        turns = list(range(self._board.turns))
        return {"number": number, "turns": turns if number != AS_IT_IS else turns[-1:], "lengths": self._board.lengths}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Records on the `Board` that the trial has ended. The main thread has already added the trial's results."""
        self._board.end(self._numbers[trial_id])

    def save(self, checkpoint_path: str) -> None:
        """Does nothing, because a search is rebuilt from finished stages."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing; see `save`."""
