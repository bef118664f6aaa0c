"""Ray Tune, which asks for proposals, keeps trials under way, and decides which continue. The stages run elsewhere.

A trial of Ray Tune is a process that asks a mailbox for the result of its trial, and waits. It holds no core and no
GPU, so trials cannot starve the stages that they wait for, and a stage that two trials need runs once.
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
from adapt.tuning.proposals import Proposals, Values
from adapt.tuning.trial_scheduler import lengths_of

Answer = Mapping[str, float] | None
"""The objectives of a trial by name; None if it failed."""
Asked = tuple[int, int]
"""The number of a trial, and that of its turn, from 0; a trial has several turns where it is judged on its way."""
AS_IT_IS = 0
"""The number of the trial that changes no field. Proposals have the numbers after it."""
TURN = "turn"
"""What Tune's schedulers take for time: lengths of `Board`."""
GOES_ON = "free memory on the machines, then run the same command: the search goes on where it was"
DEATHS = 3
"""How often the process of a trial is started again."""


@dataclass
class Board:
    """What is known of all trials in this process. Tune's thread writes proposals, the main thread answers."""

    proposals: Proposals
    objectives: list[str]
    may_begin: Callable[[int], bool | None]
    """Whether there is budget for the trial of this number; None while that cannot be told."""
    lengths: list[int] = field(default_factory=lambda: [1])
    """[turns] How long a trial has been on its way after each turn; the one as it is has the last turn alone."""
    values: list[Values] = field(default_factory=lambda: [{}])
    """[trials] The values of each, the one as it is first."""
    heard: dict[Asked, Answer] = field(default_factory=dict)
    """Turns that have ended."""
    answers: dict[int, Answer] = field(default_factory=dict)
    """Trials that have ended, each with its last turn."""
    is_over: bool = False
    """Whether nothing more is proposed, since an error ends the search."""

    @property
    def turns(self) -> int:
        """The turns of a trial."""
        return len(self.lengths)

    def next(self) -> int | None:
        """The number of one more trial; None while it must wait for results.

        Raises:
            StopIteration: there is none.
        """
        number = len(self.values)
        if self.is_over or number > self.proposals.count:
            raise StopIteration
        told = self.proposals.told(number - 1)
        if not all(each in self.answers for each in range(1, told + 1)):
            return None
        may = self.may_begin(number)
        if may is None:
            return None
        if not may:
            raise StopIteration
        known = [self._objectives(self.answers[each]) for each in range(1, told + 1)]
        self.values.append(self.proposals.propose(self.values[1:], known))
        return number

    def end(self, number: int) -> None:
        """Notes that a trial has ended, with the last of its turns."""
        heard = [self.heard[number, turn] for turn in range(self.turns) if (number, turn) in self.heard]
        if heard:
            self.answers[number] = heard[-1]

    def _objectives(self, answer: Answer) -> list[float] | None:
        return None if answer is None else [answer[name] for name in self.objectives]


def scheduler_of(tune: TuneConfig, is_lower_better: bool) -> Any:
    """The scheduler of Ray Tune; None for none.

    Args:
        tune: settings.
        is_lower_better: whether the first objective should be low.
    """
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
        board: what is to be proposed, and where answers are kept.
        at_once: trials under way.
        scheduler: of Ray Tune; None if all trials have all turns.
        begin: called when a turn begins.
        look: called again and again; gives the turns that have ended since.

    Raises:
        AdaptError: as `begin` and `look`; or a machine ran out of memory, and Ray has killed processes that only wait.
    """
    mailbox: Any = ray.remote(num_cpus=0)(_Mailbox).remote()
    errors: list[BaseException] = []
    with tempfile.TemporaryDirectory(prefix="dontstop-tune-", ignore_cleanup_errors=True) as scratch:
        thread = threading.Thread(target=_tune, args=(board, at_once, scheduler, mailbox, scratch, errors), daemon=True)
        thread.start()  # in the main thread, Tune would take over the signals
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
            raise
    if errors:
        with user_errors(GOES_ON):
            raise errors[0]
    _leftover(board, begin, look)


def _leftover(board: Board, begin: Callable[[Asked], None], look: Callable[[], Mapping[Asked, Answer]]) -> None:
    """Ends the trials whose process died again and again: each has its first turn at least."""
    left = [number for number in range(len(board.values)) if number not in board.answers]
    first = {number: (number, 0 if number != AS_IT_IS else board.turns - 1) for number in left}
    for asked in first.values():
        begin(asked)
    while not board.heard.keys() >= {*first.values()}:
        board.heard |= look()
    for number in left:
        board.end(number)


def _tune(board: Board, at_once: int, scheduler: Any, mailbox: Any, scratch: str, errors: list[BaseException]) -> None:
    """Tune's own files are of no use here, since what is finished is in the store."""
    hush()
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new one announces itself however quiet it is told to be
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # a trial that failed reports nothing
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
    """The resources of a process that only waits, which is on the driver's node. Tune refuses to give it nothing."""
    here = ray.get_runtime_context().get_node_id()
    (address,) = [node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here]
    return {f"node:{address}": 0.001}


def _asks(config: dict[str, Any], mailbox: Any) -> None:
    """What a process of Tune's does. It is ended while it reports a turn if the scheduler wants no more of them."""
    for turn in config["turns"]:
        answer = ray.get(mailbox.ask.remote((config["number"], turn)))
        if answer is None:
            return
        tune.report({**answer, TURN: config["lengths"][turn]})


class _Mailbox:
    """An actor between the processes that wait and the one that works."""

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
        return await asyncio.shield(self._answer_to(asked))  # a process that asks again finds the answer

    async def take(self) -> list[Asked]:
        taken, self._asked = self._asked, []
        return taken

    async def answer(self, asked: Asked, answer: Answer) -> None:
        if not (waiting := self._answer_to(asked)).done():
            waiting.set_result(answer)

    async def close(self) -> None:
        """Sends all who wait, or come, away with nothing."""
        self._is_closed = True
        for asked in list(self._answers):
            await self.answer(asked, None)


class _InOrder(Searcher):
    """Tune's way of asking the board for proposals."""

    def __init__(self, board: Board) -> None:
        super().__init__(metric=board.objectives[0], mode="max")
        self._board = board
        self._numbers: dict[str, int] = {}
        """Numbers by what Tune calls its trials."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune writes down how it was called; the board is this process's own

    def suggest(self, trial_id: str) -> Any:
        """The number of a trial and its turns; None while there is none yet."""
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
        """Tells the board, which knows what was measured from the main thread."""
        self._board.end(self._numbers[trial_id])

    def save(self, checkpoint_path: str) -> None:
        """Nothing: a search is made anew of what is finished."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing, as `save`."""
