"""Runs a command of a page in a forked process: `dontstop`, a script, or the check of YAML blocks.

Each job gets the small configuration of `tests.docs.world`, which replaces fields of the job's own configuration.

- `command.py dontstop ARGUMENTS`
- `command.py script FILE ARGUMENTS`
- `command.py check FILES`: refuses unknown fields and wrong values in each file.
"""

import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import adapt.parse
from adapt.chain import chain_nodes
from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.cli.main import main
from adapt.config import Config
from adapt.config.fields import hints_of, read_fields
from adapt.config.job_config import Kind
from adapt.model import demo_checkpoint
from adapt.parse.command_line import read_given
from adapt.parse.keys import named_in, nested, option_sections, overlaid
from adapt.parse.yaml_file import read_yaml
from adapt.support.errors import AdaptError
from adapt.train.capacity import device
from adapt.tuning import search_run
from adapt.tuning.search_checks import DOMAINS, read_space
from tests.docs.world import SMALL


def make_small() -> None:
    """Overrides fields of every configuration that this process reads with the values of the small configuration.

    Values that a search tries are not replaced. A tiny model replaces the demo model, so its digests are not compared.
    The machine's speed is set to a constant, because measuring it needs a new process and takes four times as long as
    the rest of a plan.
    """
    with_defaults = adapt.parse.with_defaults
    of_command, of_chain = search_run.trial_config, chain_nodes.entry_configure
    tried: list[Mapping[str, Any]] = [{}]

    def small(given: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
        made = overlaid(overlaid(with_defaults(given, kind), SMALL), nested(tried[-1]))
        if made["training"].get("phases"):  # each phase of training needs at least one step for its warm-up
            made["training"] = {**made["training"], "warmup_steps": None, "max_steps": 10}
        if made["evaluation"].get("interval_steps"):  # an interval must not be longer than this short training run
            made["evaluation"] = {**made["evaluation"], "interval_steps": 1, "share": 0.9}
        return made

    def trying(configure: Callable[..., Any], values: Mapping[str, Any], *given: Any) -> Any:
        tried.append(values)
        try:
            return configure(*given, values)
        finally:
            tried.pop()

    def in_chain(*given: Any) -> Any:
        configure = of_chain(*given)
        return lambda values: trying(configure, values)

    demo_checkpoint.check_files = lambda folder: None  # type: ignore[assignment]
    device.measured_device = lambda precision, workers: (device.found(workers), 1e11)  # type: ignore[assignment]
    adapt.parse.with_defaults = small
    search_run.trial_config = lambda arguments, job, values: trying(of_command, values, arguments, job)
    chain_nodes.entry_configure = in_chain


def check(file: str) -> None:
    """Reads a YAML file as dontstop reads it.

    Raises:
        AdaptError: a field is unknown or has a wrong value.
    """
    content = read_yaml(file)
    if "stages" in content:
        expand_chain(read_chain(file))
    elif any(isinstance(value, dict) and {*value} & {*DOMAINS, "grid_search"} for value in content.values()):
        read_space(file)
    else:
        given = read_given(["--config", file])
        kinds = named_in(given)
        types = {**hints_of(Config), **option_sections(kinds, frozenset(given))}
        for name, value in given.items():
            read_fields(types[name], value, name)


def check_all(files: list[str]) -> None:
    """Checks YAML files, and prints the errors of each wrong file."""
    wrong = 0
    for file in files:
        try:
            check(file)
        except AdaptError as error:
            print(f"{Path(file).name}: {error.what}\n  fix: {error.fix}", file=sys.stderr)
            wrong += 1
    sys.exit(wrong)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "check":
        check_all(rest)
    make_small()
    if what == "dontstop":
        sys.argv = ["dontstop", *rest]
        main()
    sys.argv = rest
    sys.path[0] = str(Path(rest[0]).parent)
    runpy.run_path(rest[0], run_name="__main__")
