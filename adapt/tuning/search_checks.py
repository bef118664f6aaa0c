"""Reads a search space, and checks the space and the objectives of a search before anything runs.

A search space has a domain (a range or list of values) for each searched field. This module imports Ray Tune.
"""

import inspect
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ray import tune
from ray.tune.search.sample import Categorical, Float, Integer, Quantized

from adapt.config import Config
from adapt.parse.keys import known_keys, named_in, unknown
from adapt.parse.yaml_file import read_yaml
from adapt.runner.stage import everything
from adapt.stage.model_evaluation import Evaluate
from adapt.stage.prepare_text import Gather, Prepare, PrepareTexts
from adapt.stage.train import Train
from adapt.stage.training_plan import share_held_out
from adapt.support.better import better_directions
from adapt.support.errors import AdaptError, ConfigError, nearest
from adapt.tuning.job_trial import DEV_SCORE, Configure, Trial, check_test_files, figures_of, on_dev
from adapt.tuning.proposals import STEPS, Proposals, Space, check_bound, check_turns, draw, proposals
from adapt.tuning.search_stage import Search

SEEDS = ("seed", "finetune.seeds", "tune.seed", "tune.fresh_seeds", "tune.finalist_seeds")
"""Fields that must not be searched, because the best seed would only be the luckiest seed."""
DRAWS = 4
"""Number of random samples of the space that are tried to find out whether a field affects trials."""


def checked_search(search: Search) -> tuple[Space, Proposals]:
    """Checks a search, and returns its space and its proposals.

    Raises:
        ConfigError: a field, a domain or an objective is wrong.
        DataError: the files of a test split do not exist.
    """
    config = search.config
    check_fresh_seeds(config)
    if config.tune.fresh_seeds:  # with fresh seeds, the best trial will be tested on the test split
        check_test_files(config)
    space = read_space(search.space)
    check_turns(config, space)
    check_objectives(config, search.trial({}))
    check_finalists(config, search.trial({}))
    if config.tune.scheduler != "none":
        if search.trial({}, 0) == search.trial({}):
            raise ConfigError(
                f"tune.scheduler varies {STEPS}, which does not change anything that job {search.job.name} measures",
                "set tune.scheduler to none",
            )
        _check_going_on(search, space)
    check_fields(space, search.space, search.configure, lambda config: search.measured(on_dev(config)))
    return space, proposals(space, config.tune, [search.directions[name] == "min" for name in config.tune.objectives])


def _check_going_on(search: Search, space: Space) -> None:
    """Refuses a search if the training run of a trial could not continue after a measurement.

    Checks the unchanged configuration. Then checks the lowest and the highest value of each searched field, with all
    other fields unchanged.

    Combinations of values are not checked. If a trial with such a combination cannot continue, it trains from the
    beginning up to each measurement.
    """
    given = {stage.key for stage in everything(search.inputs.values())}
    for values in ({}, *({name: end} for name in space for end in ends(space[name]))):
        try:
            stages = everything([search.trial(values)])
        except ConfigError:
            continue  # skips a value that is invalid by itself, because it may be valid together with other values
        for stage in stages:
            if isinstance(stage, Train) and stage.key not in given and (reason := stage.length_matters):
                raise ConfigError(
                    f"tune.scheduler {search.config.tune.scheduler} continues a training run after each measurement,"
                    f" but with {reason} the steps of a training run depend on its total length",
                    "set tune.scheduler to none, so that each trial is trained without interruption",
                )


def check_fields(space: Space, place: str, configure: Configure, trial: Callable[[Config], Trial]) -> None:
    """Refuses unknown fields, invalid values, and fields that do not affect the measured scores and losses.

    `place` names the file of the space in messages.
    """
    config = configure({})
    kinds = named_in({"method": vars(config.method), "select": vars(config.select)})
    fields = known_keys(kinds) - set(Config.__dataclass_fields__) | {"seed"}
    for name in space:
        if name.startswith("training.phases."):
            raise ConfigError(
                f"{name} in {place} is a field inside a phase, and only whole phases can be searched",
                "list complete values of training.phases, or search the field of section training or objective whose"
                " value a phase uses by default",
            )
        if name not in fields:
            raise unknown(f"{name} in {place}", name, fields)
        if name in SEEDS:
            raise ConfigError(
                f"{name} in {place} is a seed, and the best seed would only be the luckiest one", "search another field"
            )
        for value in ends(space[name]):
            _fits(name, value, place, configure)
    for name in space:
        if len(ends(space[name])) > 1 and not _matters(name, space, configure, trial):
            raise ConfigError(
                f"{name} in {place} does not change anything that this job measures",
                "remove the field, or search the job that uses this field",
            )


def _matters(name: str, space: Space, configure: Configure, trial: Callable[[Config], Trial]) -> bool:
    """Returns whether changing only this field, from its lowest to its highest value, changes a trial's key."""
    generator = np.random.default_rng(0)
    for _ in range(DRAWS):
        drawn = {other: draw(domain, generator) for other, domain in space.items()}
        try:
            keys = {trial(configure({**drawn, name: end})).key for end in _two(ends(space[name]))}
        except ConfigError:
            continue  # the drawn values contradict each other; draw again
        if len(keys) > 1:
            return True
    return False


def _two(values: list[Any]) -> tuple[Any, Any]:
    return values[0], values[-1]


def _fits(name: str, value: Any, place: str, configure: Configure) -> None:
    """Refuses an invalid value of a field. If a value only contradicts other fields, its trial fails later instead."""
    try:
        configure({name: value})
    except ConfigError as error:
        if name in error.what:
            raise ConfigError(f"{name} in {place}: {error.what}", error.fix) from error


def check_objectives(config: Config, trial: Trial) -> None:
    """Refuses objectives that trials do not report, or of which it is not declared whether lower is better."""
    check_bound(config, {**better_directions(trial.final.result_type()), **({DEV_SCORE: 1} if trial.runs else {})})
    names, known, ways = config.tune.objectives, figures_of(trial), better_directions(trial.final.result_type())
    usable = sorted(name for name in known if ways.get(name, 1))
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"tune.objectives is {names}: the list is empty or repeats a name", "name one or more metrics"
        )
    for name in names:
        if not usable:
            raise ConfigError(
                "tune.objectives: this job reports no metric by which to compare trials", "search another job"
            )
        if name not in known:
            fix = "name the files of a task (task.train, task.dev, task.test)" if name == "dev_score" else ""
            raise ConfigError(f"tune.objectives: this job reports no {name}", fix or nearest(name, usable))
        if name not in usable:
            raise ConfigError(
                f"tune.objectives: neither higher nor lower values of {name} are better",
                f"use one of: {', '.join(usable)}; the result class of your own job declares the better direction with"
                f" `{name}: More[float]` (docs/develop/extending.md)",
            )
        if name.startswith("losses.domain.") and not _holds_out(trial):
            raise ConfigError(
                f"tune.objectives: no trial can report {name}, because no text of the domain is held out",
                "set corpus.heldout_fraction above 0, or name another metric",
            )
        if name.startswith(("losses.general", "general")) and not config.evaluation.general_paths:
            raise ConfigError(f"tune.objectives: {name} needs general text", "set evaluation.general_paths")


def _holds_out(trial: Trial) -> bool:
    """Returns whether a measured text of the domain has held-out documents, or may have some."""
    for stage in everything([trial]):
        if isinstance(stage, Evaluate) and (text := stage.corpora.get("domain")):
            parts = text.inputs.values() if isinstance(text, Gather) else [text]
            return any(not isinstance(part, Prepare | PrepareTexts) or share_held_out(part) for part in parts)
    return True


def check_fresh_seeds(config: Config) -> None:
    """Refuses fresh seeds that are repeated, out of range, or also used by trials of the search."""
    fresh, seen = config.tune.fresh_seeds, {config.seed, *config.finetune.seeds, *config.tune.finalist_seeds}
    _check_seeds("tune.fresh_seeds", fresh, seen, "[1001, 1002, 1003]")


def check_finalists(config: Config, trial: Trial) -> None:
    """Refuses finalist seeds that are repeated, out of range, already used, or without effect on the first objective.

    Raises:
        ConfigError: a seed is wrong, the trial has no fine-tuning run, or the first objective is a loss.
    """
    tune = config.tune
    if not tune.finalist_seeds:
        return
    _check_seeds("tune.finalist_seeds", tune.finalist_seeds, {*config.finetune.seeds}, "[2001, 2002, 2003]")
    if not trial.runs or tune.objectives[0].startswith(("loss", "general")):
        raise ConfigError(
            f"tune.finalist_seeds are seeds of fine-tuning, but {tune.objectives[0]} does not depend on them",
            "leave out tune.finalist_seeds, or make a score, such as dev_score, the first objective",
        )


def _check_seeds(field: str, seeds: list[int], used: set[int], example: str) -> None:
    if again := sorted({*seeds} & used):
        raise ConfigError(f"{field}: the trials already use the seeds {again}", f"use other seeds, such as {example}")
    if len({*seeds}) < len(seeds) or not all(0 <= seed < 2**63 for seed in seeds):
        raise ConfigError(
            f"{field} is {seeds}: a seed is repeated or out of range", "use different numbers from 0 to 2^63 - 1"
        )


DOMAINS = ("uniform", "quniform", "loguniform", "qloguniform", "randint", "qrandint", "lograndint", "qlograndint")
"""Names of Ray Tune's domains that a YAML file may use. Each domain takes a list of arguments."""
EXAMPLE = "write `training.learning_rate: {loguniform: [1e-5, 1e-3]}`, or a list of values"


def read_space(path: str) -> dict[str, Any]:
    """Reads a space from a YAML file, or from a Python file with one function that returns fields and domains.

    Raises:
        ConfigError: the file cannot be read, or has no valid space.
    """
    given = _from_python(path) if path.endswith(".py") else _from_yaml(path)
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"{path} searches no field", f"add a field: {EXAMPLE}")
    return {str(name): _domain(str(name), value, path) for name, value in given.items()}


def _from_python(path: str) -> Any:
    module = f"tune_spaces.{Path(path).stem}"
    try:
        found = runpy.run_path(path, run_name=module)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "check the path") from error
    except Exception as error:
        raise ConfigError(f"{path} cannot be imported: {error}", "correct the file") from error
    functions = [
        value
        for name, value in found.items()
        if inspect.isfunction(value) and value.__module__ == module and not name.startswith("_")
    ]
    if len(functions) != 1:
        named = ", ".join(function.__name__ for function in functions) or "none"
        raise ConfigError(
            f"{path} has {len(functions)} functions ({named})", "define exactly one, which returns the space"
        )
    try:
        return functions[0]()
    except Exception as error:
        raise ConfigError(f"{path}: {functions[0].__name__}() fails: {error}", "correct the function") from error


def _from_yaml(path: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in read_yaml(path).items():
        if isinstance(value, Mapping) and "." not in str(name):  # `name` is a section; `value` has its fields
            fields |= {f"{name}.{field}": domain for field, domain in value.items()}
        else:
            fields[str(name)] = value
    for name, value in fields.items():
        if value is None:
            raise ConfigError(f"{name} in {path} has no value", EXAMPLE)
    return {name: _named(name, value, path) if isinstance(value, Mapping) else value for name, value in fields.items()}


def _named(name: str, value: Mapping[str, Any], path: str) -> Any:
    kind, arguments = next(iter(value.items()), ("", []))
    if len(value) > 1 or not isinstance(arguments, list):
        raise ConfigError(f"{name} in {path} is {dict(value)}, which is not a range or list of values", EXAMPLE)
    if kind not in DOMAINS:
        raise ConfigError(f"{name} in {path}: there is no kind of range {kind}", nearest(str(kind), DOMAINS))
    try:
        return getattr(tune, kind)(*[_number(argument) for argument in arguments])
    except (TypeError, ValueError, AdaptError) as error:
        raise ConfigError(f"{name} in {path}: {kind} of {arguments}: {error}", EXAMPLE) from error


def _number(given: Any) -> float:
    """Converts a value to a number. YAML reads some numbers, such as 1e-5, as strings."""
    return given if isinstance(given, int | float) else float(given)


def _domain(name: str, value: Any, path: str) -> Any:
    if isinstance(value, Mapping) and set(value) == {"grid_search"}:
        value = value["grid_search"]
    if isinstance(value, list | tuple):
        value = tune.choice(list(value))
    if not isinstance(value, Categorical | Float | Integer):
        raise ConfigError(f"{name} in {path} is {value!r}, which is not a range or list of values", EXAMPLE)
    if isinstance(value, Categorical):
        if not value.categories:
            raise ConfigError(f"{name} in {path} has an empty list of values", "list some values, or remove the field")
    elif not value.lower < value.upper:
        raise ConfigError(
            f"{name} in {path}: the lower bound {value.lower:g} is not below the upper bound {value.upper:g}",
            "write the lower bound first",
        )
    return value


def ends(domain: Any) -> list[Any]:
    """Returns the lowest and highest value of a range, or all values of a list."""
    if hasattr(domain, "categories"):
        return list(domain.categories)
    is_open = isinstance(domain, Integer) and not isinstance(domain.get_sampler(), Quantized)
    return [domain.lower, domain.upper - 1 if is_open else domain.upper]
