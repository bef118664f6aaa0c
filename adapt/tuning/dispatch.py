"""Ray Tune: it asks for proposals, keeps trials under way, and decides which go on; the work is done elsewhere.

A trial of Tune's is a process that asks a mailbox for the result of its trial, and waits. It holds no core and no GPU,
so trials cannot starve the stages that they wait for, and a stage that two of them need is one stage.
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
from ray.tune.search import Searcher

from adapt.runtime import hush
from adapt.tuning.propose import Proposals, Values

Answer = Mapping[str, float] | None
"""The objectives of a trial by name; None if it failed."""
AS_IT_IS = 0
"""The number of the trial that changes no field. Proposals have the numbers after it."""
WAITING = {"node:__internal_head__": 0.001}
"""What a process takes that only waits: Tune refuses to give one nothing."""

DEATHS = 3
"""How often the process of a trial is started again."""


@dataclass
class Board:
    """What is known of all trials in this process. Tune's thread writes proposals, the main thread answers."""

    proposals: Proposals
    objectives: list[str]
    may_begin: Callable[[int], bool | None]
    """Whether there is budget for the trial of this number; None while that cannot be told."""
    values: list[Values] = field(default_factory=lambda: [{}])
    """[trials] The values of each, the one as it is first."""
    answers: dict[int, Answer] = field(default_factory=dict)

    def next(self) -> int | None:
        """The number of one more trial; None while it must wait for results.

        Raises:
            StopIteration: there is none.
        """
        number = len(self.values)
        if number > self.proposals.count:
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

    def _objectives(self, answer: Answer) -> list[float] | None:
        return None if answer is None else [answer[name] for name in self.objectives]


def dispatch(
    board: Board, at_once: int, begin: Callable[[int], None], look: Callable[[], Mapping[int, Answer]]
) -> None:
    """Runs all trials.

    Args:
        board: what is to be proposed, and where answers are kept.
        at_once: trials under way.
        begin: called when a trial begins, with its number.
        look: called again and again; gives the trials that have ended since.

    Raises:
        AdaptError: as `begin` and `look`.
    """
    mailbox: Any = ray.remote(num_cpus=0)(_Mailbox).remote()
    errors: list[BaseException] = []
    with tempfile.TemporaryDirectory(prefix="dontstop-tune-") as scratch:
        thread = threading.Thread(target=_tune, args=(board, at_once, mailbox, scratch, errors), daemon=True)
        thread.start()  # in the main thread, Tune would take over the signals
        while thread.is_alive():
            for number in ray.get(mailbox.take.remote()):
                begin(number)
            for number, answer in look().items():
                board.answers[number] = answer
                mailbox.answer.remote(number, answer)
            thread.join(0.05)
    if errors:
        raise errors[0]
    for number in range(len(board.values)):  # whose process died, again and again
        begin(number)
    while len(board.answers) < len(board.values):
        board.answers |= look()


def _tune(board: Board, at_once: int, mailbox: Any, scratch: str, errors: list[BaseException]) -> None:
    """Tune's own files are of no use here, since what is finished is in the store."""
    hush()
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new one announces itself however quiet it is told to be
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    asked = tune.with_parameters(_asks, mailbox=mailbox)
    search = _InOrder(board)
    settings = tune.TuneConfig(search_alg=search, num_samples=-1, max_concurrent_trials=at_once, reuse_actors=True)
    again = tune.FailureConfig(max_failures=DEATHS)
    run = tune.RunConfig(storage_path=scratch, name="trials", verbose=0, failure_config=again)
    try:
        tune.Tuner(tune.with_resources(asked, WAITING), tune_config=settings, run_config=run).fit()
    except BaseException as error:
        errors.append(error)


def _asks(config: dict[str, Any], mailbox: Any) -> None:
    """What a process of Tune's does."""
    if (answer := ray.get(mailbox.ask.remote(config["number"]))) is not None:
        tune.report(answer)


class _Mailbox:
    """An actor between the processes that wait and the one that works."""

    def __init__(self) -> None:
        self._asked: list[int] = []
        self._answers: dict[int, asyncio.Future[Answer]] = {}

    def _answer_to(self, number: int) -> "asyncio.Future[Answer]":
        return self._answers.setdefault(number, asyncio.get_running_loop().create_future())

    async def ask(self, number: int) -> Answer:
        self._asked.append(number)
        return await asyncio.shield(self._answer_to(number))  # a process that asks again finds the answer

    async def take(self) -> list[int]:
        asked, self._asked = self._asked, []
        return asked

    async def answer(self, number: int, answer: Answer) -> None:
        if not (waiting := self._answer_to(number)).done():
            waiting.set_result(answer)


class _InOrder(Searcher):
    """Tune's way of asking the board for proposals."""

    def __init__(self, board: Board) -> None:
        super().__init__(metric=board.objectives[0], mode="max")
        self._board, self._has_begun = board, False

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune writes down how it was called; the board is this process's own

    def suggest(self, trial_id: str) -> Any:
        """The number of a trial; None while there is none yet."""
        if not self._has_begun:
            self._has_begun = True
            return {"number": AS_IT_IS}
        try:
            number = self._board.next()
        except StopIteration:
            return Searcher.FINISHED
        return None if number is None else {"number": number}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """The board knows it already, from the main thread."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: a search is made anew of what is finished."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing, as `save`."""
