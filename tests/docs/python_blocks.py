"""Runs the Python blocks of a page in one process, so that each block can use the names of earlier blocks.

The process reads a line of JSON per block from a named pipe, and writes a line of JSON per result to another pipe.
"""

import contextlib
import io
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import dontstop
from adapt.api import arguments_of
from adapt.chain.chain_run import ChainPlan
from adapt.job import JOBS
from adapt.runner import Store
from adapt.stage.context import root_of
from adapt.tuning.search_run import SearchAhead, search_of_command
from tests.docs.command import make_small


class Anything:
    """The result of a run that was only planned. It has every attribute."""

    def load(self, **_: Any) -> tuple["Anything", "Anything"]:
        return Anything(), Anything()

    def __getattr__(self, name: str) -> "Anything":
        if name.startswith("_"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, _: Any) -> "Anything":
        return Anything()

    def __call__(self, *_: Any, **__: Any) -> "Anything":
        return Anything()

    def __fspath__(self) -> str:
        return "planned"

    def __format__(self, _: str) -> str:
        return "planned"


def _planned(job: str) -> Callable[..., Anything]:
    def plan(*given: Any, **fields: Any) -> Anything:
        if job == "vocabulary":
            action, *given = given  # type: ignore[assignment]
            fields["vocabulary"] = {**fields.get("vocabulary", {}), "action": action}
        print(dontstop.plan(job, *given, **fields))
        return Anything()

    return plan


def _tune(space: Any, config: Any = None, /, job: str | None = None, **fields: Any) -> Anything:
    search = search_of_command(
        arguments_of(config, {**fields, "tune.space": str(space), **({"tune.job": job} if job else {})})
    )
    SearchAhead.of(search, Store(root_of(search.config)))
    return Anything()


def _run(study: dontstop.ChainStudy) -> ChainPlan:
    return study.plan()


@contextlib.contextmanager
def planned() -> Any:
    """Replaces the functions that run jobs, searches and chains with functions that only plan, while the block runs."""
    own = {name: getattr(dontstop, name) for name in (*JOBS, "tune")}
    run = dontstop.ChainStudy.run
    for name in JOBS:
        setattr(dontstop, name, _planned(name))
    dontstop.tune = _tune  # type: ignore[assignment]
    dontstop.ChainStudy.run = _run  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(dontstop, name, function)
        dontstop.ChainStudy.run = run  # type: ignore[method-assign]


def main(questions: str, answers: str) -> None:
    """Runs blocks until the test closes the pipe."""
    make_small()
    names: dict[str, Any] = {"__name__": "__main__"}
    with open(questions) as asked, open(answers, "w") as answered:
        for line in asked:
            block = json.loads(line)
            out, error = io.StringIO(), ""
            with contextlib.redirect_stdout(out), planned() if block["plan"] else contextlib.nullcontext():
                try:
                    exec(compile(block["text"], block["place"], "exec"), names)
                except BaseException:
                    error = traceback.format_exc()
            print(
                json.dumps({"out": out.getvalue(), "err": error, "code": int(bool(error))}), file=answered, flush=True
            )


if __name__ == "__main__":
    sys.path[:0] = ["."]
    main(*sys.argv[1:])
