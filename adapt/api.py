"""What `import dontstop` offers: a function for each job, plans, chains and searches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from adapt.chain.chain_run import ChainPlan, ChainRun, Report
from adapt.config import Config, flat
from adapt.config.job_config import Kind
from adapt.job.job_run import Job, JobRun, Plan, plan_of, run_stages_of
from adapt.job.registry import JOBS, job_of
from adapt.parse import parse
from adapt.parse.values import check_config
from adapt.ray.runtime import disconnect
from adapt.runner import Record
from adapt.show.blocks import Block
from adapt.show.pages import SelfShown
from adapt.show.progress.chain_now import ChainNow
from adapt.stage.context import Context
from adapt.support.errors import ConfigError
from adapt.support.shipped import recipe_file
from adapt.terminal.library import as_library
from adapt.tuning.search_run import SearchRun, run_search, search_asked

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from adapt.advise.advice import Advice
    from adapt.evaluate.measurements import ModelsCompared, Similar
    from adapt.stage.domain_sequence import SequenceResult
    from adapt.stage.export_model import Adapted
    from adapt.stage.finetuning import Scored
    from adapt.stage.judge_selection import SelectionJudged
    from adapt.stage.merge_stage import MadeOf

R = TypeVar("R")
Source = str | PathLike[str] | Mapping[str, Any] | Config | Sequence[str | PathLike[str]] | None
"""Where a configuration comes from: YAML files (later ones win), a mapping of sections, a `Config`, or nothing."""


@dataclass(frozen=True, eq=False)
class Run(SelfShown, Generic[R]):
    """A job that has run. `print(run)` shows what the command shows; a notebook shows tables and plots."""

    _run: JobRun

    @property
    def job(self) -> str:
        """The name of the job, such as `dapt`."""
        return self._run.job.name

    @property
    def config(self) -> Config:
        """The configuration, with all defaults."""
        return self._run.context.config

    @cached_property
    def result(self) -> R:
        """The job's result, a dataclass. For `dapt` and `tapt`: `adapt.stage.export_model.Adapted`."""
        result: R = self._run.result
        return result

    @property
    def record(self) -> Record:
        """The record of the job's last stage: key, settings, inputs, cost, package versions."""
        return self._run.finished.record

    @property
    def path(self) -> Path:
        """The folder of the job's last stage. For `dapt` and `tapt` it is the Hugging Face model."""
        return self._run.finished.path

    def load(
        self, domain: str | None = None, share: float | None = None
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """Loads the model that the job made, with its tokenizer.

        Args:
            domain: whose parts are used, where the model has parts for each domain; None for the domain learnt last.
            share: of a merge with several shares, the one whose model is loaded.

        Returns:
            The model in evaluation mode on the CPU, in fp32, and its tokenizer.

        Raises:
            ConfigError: the job makes no model, or none with this share.
            ModelError: the model cannot be loaded, or has no parts for the domain.
        """
        from adapt.model.load import load_model
        from adapt.model.tokenizer import load_tokenizer

        folder = self._run.model_folder(share)
        model = load_model(folder, causal=self.config.objective.kind == "causal", domain=domain)
        return model, load_tokenizer(folder)

    def blocks(self) -> list[Block]:
        """Tables, sentences and plots of the result (`adapt.show.blocks`)."""
        return self._run.blocks()

    def __repr__(self) -> str:
        return f"<dontstop run of {self.job}: {self.path}>"


def dapt(config: Source = None, /, **fields: Any) -> Run[Adapted]:
    """Adapts a language model to the text of a domain (Don't Stop Pretraining, section 3).

    Finished stages are not run again: the same call returns the same result within a second.

    Args:
        config: YAML file or files, a mapping, or a `Config`; None where keywords say everything.
        **fields: sections and fields that replace those of `config`, such as `training={"learning_rate": 1e-4}`,
            `corpus={"paths": "papers/*.jsonl"}` or `name="papers"`.

    Returns:
        The run, with the losses on held-out text before and after in `run.result.losses`.

    Raises:
        AdaptError: a field, a file or a model is wrong, or a stage failed. The message says which and how to fix it.
    """
    return _run("dapt", config, fields)


def tapt(config: Source = None, /, **fields: Any) -> Run[Adapted]:
    """Adapts a language model to the unlabelled text of a task (Don't Stop Pretraining, section 4).

    Arguments: see `dapt`.
    """
    return _run("tapt", config, fields)


def select(config: Source = None, /, **fields: Any) -> Run[SelectionJudged]:
    """Selects the documents of a pool that are worth training on for a task. Arguments: see `dapt`."""
    return _run("select", config, fields)


def sequence(config: Source = None, /, **fields: Any) -> Run[SequenceResult]:
    """Adapts a model to one domain after another without forgetting. Arguments: see `dapt`."""
    return _run("sequence", config, fields)


def merge(config: Source = None, /, **fields: Any) -> Run[MadeOf]:
    """Makes a model of others without training. Arguments: see `dapt`."""
    return _run("merge", config, fields)


def finetune(config: Source = None, /, **fields: Any) -> Run[Scored]:
    """Fine-tunes a model on a labelled task with several seeds and scores it on test. Arguments: see `dapt`."""
    return _run("finetune", config, fields)


def evaluate(config: Source = None, /, **fields: Any) -> Run[ModelsCompared]:
    """Compares models on held-out text of several domains. Arguments: see `dapt`."""
    return _run("evaluate", config, fields)


def similarity(config: Source = None, /, **fields: Any) -> Run[Similar]:
    """Measures how similar domains are. Arguments: see `dapt`."""
    return _run("similarity", config, fields)


def vocabulary(action: str, config: Source = None, /, **fields: Any) -> Run[Any]:
    """Analyzes, extends, trims or builds a vocabulary.

    Args:
        action: `analyze`, `extend`, `trim` or `scratch`.
        config: see `dapt`.
        **fields: see `dapt`.
    """
    own = fields.get("vocabulary", {})
    return _run("vocabulary", config, {**fields, "vocabulary": {**own, "action": action}})


def advise(config: Source = None, /, **fields: Any) -> Run[Advice]:
    """Says which recipe to run first for a corpus and tasks, at what cost, and why. Arguments: see `dapt`."""
    return _run("advise", config, fields)


def tune(space: str | PathLike[str], config: Source = None, /, job: str | None = None, **fields: Any) -> SearchRun:
    """Searches good values for fields of a job by trials on dev; the best one is run with fresh seeds and then tested.

    Args:
        space: name of a space that comes with the package, such as `tapt`, or the file of one.
        config: see `dapt`.
        job: whose fields are searched; None for the job that the space is named after.
        **fields: see `dapt`. The section `tune` has the number of trials, objectives and searcher.

    Raises:
        AdaptError: the space or a field is wrong, or no trial has ended well.
    """
    named = {"tune.space": str(space), **({"tune.job": job} if job else {})}
    with _session():
        return run_search(search_asked(arguments_of(config, {**fields, **named})))


def chain(
    file: str | PathLike[str],
    /,
    only: Mapping[str, Sequence[str]] | None = None,
    fields: Mapping[str, Any] | None = None,
    **let: Any,
) -> ChainStudy:
    """Reads a chain file: several jobs, what they start from, and what they are swept over.

    Args:
        file: its path, or the name of a recipe, such as `study`.
        only: members to run by the name of their set, such as `{"task": ["acl_arc"]}`.
        fields: sections or fields of the configuration that hold for all stages.
        **let: values for the names of the file's `let`, such as `data="/data"`.

    Raises:
        ConfigError: the file cannot be read, or is wrong.
    """
    values = {name: str(value) for name, value in let.items()}
    members = {name: list(of_set) for name, of_set in (only or {}).items()}
    return ChainStudy(ChainRun.of(recipe_file(str(file)), values, _flat(fields or {}), members))


@dataclass(frozen=True)
class ChainStudy:
    """A chain of stages that can be planned, run, looked at and reported."""

    _chain: ChainRun

    def plan(self) -> ChainPlan:
        """What would run, and what it takes. Nothing runs.

        Raises:
            AdaptError: a stage cannot work.
        """
        with _session():
            return self._chain.plan()

    def run(self) -> Report:
        """Runs what is not finished, side by side as far as there is room, and writes the report.

        Raises:
            AdaptError: a stage failed. The report of what is finished is written before.
        """
        with _session():
            return self._chain.run()

    def status(self) -> ChainNow:
        """How far the chain is, wherever it runs."""
        with _session():
            return self._chain.status()

    def report(self) -> Report:
        """Writes the report of all that is finished."""
        with _session():
            return self._chain.report()


def plan(job: str, config: Source = None, /, **fields: Any) -> Plan:
    """Says what a job would run, why, and what it takes. Nothing runs.

    Args:
        job: its name, such as `dapt`.
        config: see `dapt`.
        **fields: see `dapt`.

    Raises:
        AdaptError: as the job itself would raise before anything runs.
    """
    with _session():
        return plan_of(job_of(job), Context.of(configuration(job_of(job).kind, config, fields)))


@contextmanager
def _session() -> Iterator[None]:
    """A run as a library. An interrupt ends what runs, and leaves the process as it was."""
    with as_library():
        try:
            yield
        except KeyboardInterrupt:
            disconnect()
            raise


def _run(name: str, config: Source, fields: Mapping[str, Any]) -> Run[Any]:
    job: Job = JOBS[name]
    with _session():
        context = Context.of(configuration(job.kind, config, fields))
        return Run(run_stages_of(job, context, arguments_of(config, fields)))


def configuration(kind: Kind, config: Source, fields: Mapping[str, Any]) -> Config:
    """The configuration of a job, checked as the command checks it.

    Args:
        kind: of the job.
        config: where it comes from.
        fields: that replace those of `config`.

    Raises:
        ConfigError: a file cannot be read, or a field is unknown (names the nearest) or has a wrong value.
    """
    if isinstance(config, Config) and not fields:
        check_config(config, kind)
        return config
    return parse(arguments_of(config, fields), f"dontstop {kind.name}", kind)


def arguments_of(config: Source, fields: Mapping[str, Any]) -> list[str]:
    """The command line that says the same.

    Raises:
        ConfigError: a configuration file does not exist.
    """
    if isinstance(config, Config | Mapping):
        known = flat(config) if isinstance(config, Config) else _flat(config)
        return _options({**known, **_flat(fields)})
    files = [] if config is None else [config] if isinstance(config, str | PathLike) else list(config)
    for file in files:
        if not Path(file).expanduser().is_file():
            raise ConfigError(f"there is no configuration file {file}", "check the path")
    return [*(f"--config={Path(file).expanduser()}" for file in files), *_options(_flat(fields))]


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Fields by dotted name, from sections or from dotted names."""
    flattened: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flattened |= _flat(value, f"{prefix}{name}.")
        elif is_dataclass(value) and not isinstance(value, type):
            flattened |= _flat(vars(value), f"{prefix}{name}.")
        else:
            flattened[f"{prefix}{name}"] = value
    return flattened


def _options(values: Mapping[str, Any]) -> list[str]:
    return [f"--{name}={_written(value)}" for name, value in values.items()]


def _written(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, str | PathLike):
        return str(value)
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
