"""Defines what `import dontstop` offers: one function per job, and functions for plans, chains and searches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from adapt.chain.chain_run import ChainPlan, ChainRun, Report
from adapt.config import Config
from adapt.config.job_config import Kind
from adapt.job import JOBS, job_of
from adapt.job.job_run import Job, JobRun, Plan, plan_of, run_stages_of
from adapt.model.architecture import is_detector
from adapt.model.locate import Pretrained
from adapt.parse import parse
from adapt.parse.python_values import Source, arguments_of, flat_fields, member_names, yaml_values
from adapt.ray.runtime import disconnect
from adapt.runner import Record
from adapt.show.blocks import Block
from adapt.show.progress.chain_now import ChainNow
from adapt.show.renderers import SelfShown
from adapt.stage.context import Context
from adapt.terminal.library import as_library
from adapt.tuning.search_run import SearchRun, run_search, search_of_command

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from adapt.advise.advice import Advice
    from adapt.evaluate.compared_models import ModelsCompared
    from adapt.evaluate.measurements import Similar
    from adapt.stage.domain_sequence import SequenceResult
    from adapt.stage.ensemble import Ensembled
    from adapt.stage.export_model import Adapted
    from adapt.stage.finetuning import Scored
    from adapt.stage.merge_stage import Merged
    from adapt.stage.select_documents import SelectionJudged

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Run(SelfShown, Generic[R]):
    """A finished job. `print(run)` shows the same tables as the command line. A notebook shows tables and plots."""

    _run: JobRun

    @property
    def job(self) -> str:
        """The name of the job, such as `dapt`."""
        return self._run.job.name

    @property
    def config(self) -> Config:
        """The whole configuration, with defaults."""
        return self._run.context.config

    @cached_property
    def result(self) -> R:
        """The result of the job, a dataclass. The reference lists its fields under "Records and results"."""
        result: R = self._run.result
        return result

    @property
    def record(self) -> Record:
        """The record of the job's last stage: its key, settings, inputs, cost and package versions."""
        return self._run.finished.record

    @property
    def path(self) -> Path:
        """The folder of the job's last stage. For `dapt` and `tapt` it holds the Hugging Face model."""
        return self._run.finished.path

    def load(
        self, domain: str | None = None, share: float | None = None
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """Loads the model that the job made, with its tokenizer.

        Args:
            domain: the domain whose parameters are used, if the model has separate parameters per domain. None means
                the last domain of the training run.
            share: the entry of `merge.shares` whose merged model is loaded, if `merge.shares` has several entries.

        Returns:
            The model, in evaluation mode, on the CPU and in fp32, and its tokenizer.

        Raises:
            ConfigError: the job does not produce a model, or has no model for this share.
            ModelError: the model cannot be loaded, or has no parameters for this domain.
        """
        from adapt.model import detector, load, tokenizer  # imported here, because these modules load torch

        folder = self._run.model_folder(share)
        if is_detector(folder):
            model, _ = detector.load_discriminator(Pretrained(folder, folder))
        else:
            model = load.load_model(folder, causal=self.config.objective.kind == "causal", domain=domain)
        return model, tokenizer.load_tokenizer(folder)

    def blocks(self) -> list[Block]:
        """Returns the tables, sentences and plots of the result."""
        return self._run.blocks()

    def __repr__(self) -> str:
        return f"<dontstop run of {self.job}: {self.path}>"


def dapt(config: Source = None, /, **fields: Any) -> Run[Adapted]:
    """Adapts a language model to the text of a domain (Don't Stop Pretraining, section 3).

    Finished stages are not run again: the same call returns the same result within a second.

    Args:
        config: the path of a YAML file, a list of paths (later files win), a mapping of sections, a `Config`, or
            None if the keyword arguments contain all fields. A field of a `Config` that has the plain default gets the
            default of the job, here and in the other functions.
        **fields: sections or fields that replace those of `config`, such as `corpus={"paths": "papers/*.jsonl"}`,
            `training={"learning_rate": 1e-4}` or `name="papers"`.

    Returns:
        The run. `run.result.losses` has the loss on held-out text before and after training.

    Raises:
        AdaptError: a field, a file or a model is wrong, or a stage failed. The message names the fault and the fix.
    """
    return _run("dapt", config, fields)


def tapt(config: Source = None, /, **fields: Any) -> Run[Adapted]:
    """Adapts a language model to the text of a task's training examples (Don't Stop Pretraining, section 4).

    The labels are not used.

    Args:
        config: the path of a YAML file, a list of paths (later files win), a mapping of sections, a `Config`, or
            None if the keyword arguments contain all fields.
        **fields: sections or fields that replace those of `config`, such as
            `task={"train": "train.jsonl", ...}`.

    Returns:
        The run. `run.result.losses` has the loss on the text of the dev examples before and after training.

    Raises:
        AdaptError: a field, a file or a model is wrong, or a stage failed. The message names the fault and the fix.
    """
    return _run("tapt", config, fields)


def select(config: Source = None, /, **fields: Any) -> Run[SelectionJudged]:
    """Selects the documents of a pool that resemble the text of a task.

    Args:
        config: the path of a YAML file, a list of paths (later files win), a mapping of sections, a `Config`, or
            None if the keyword arguments contain all fields.
        **fields: sections or fields that replace those of `config`, such as
            `select={"pool_paths": "pool.jsonl", "kind": "dsir"}`.

    Returns:
        The run. `run.result` compares the selected documents with random ones. `run.path` has the documents.

    Raises:
        AdaptError: a field, a file or a model is wrong, or a stage failed. The message names the fault and the fix.
    """
    return _run("select", config, fields)


def sequence(config: Source = None, /, **fields: Any) -> Run[SequenceResult]:
    """Adapts a model to one domain after another, with a method against forgetting.

    Args:
        config: the path of a YAML file, a list of paths (later files win), a mapping of sections, a `Config`, or
            None if the keyword arguments contain all fields.
        **fields: sections or fields that replace those of `config`, such as
            `sequence={"order": ["papers", "reviews"]}`
            or `method={"kind": "das"}`.

    Returns:
        The run. `run.result` has losses and scores after each domain, and how much was forgotten.

    Raises:
        AdaptError: a field, a file or a model is wrong, or a stage failed. The message names the fault and the fix.
    """
    return _run("sequence", config, fields)


def merge(config: Source = None, /, **fields: Any) -> Run[Merged]:
    """Merges the weights of several models into one, without training.

    Args:
        config: the path of a YAML file, a list of paths (later files win), a mapping of sections, a `Config`, or
            None if the keyword arguments contain all fields.
        **fields: sections or fields that replace those of `config`, such as
            `merge={"models": ["a", "b"], "kind": "ties"}`.

    Returns:
        The run. `run.load()` loads the merged model.

    Raises:
        AdaptError: a field, a file or a model is wrong, or a stage failed. The message names the fault and the fix.
    """
    return _run("merge", config, fields)


def ensemble(config: Source = None, /, **fields: Any) -> Run[Ensembled]:
    """Evaluates the mean prediction of the models in `ensemble={"models": [...]}`. Arguments are as for `dapt`."""
    return _run("ensemble", config, fields)


def distil(config: Source = None, /, **fields: Any) -> Run[Adapted]:
    """Trains a student to imitate the models in `distill={"teachers": [...]}`. Arguments and result as for `dapt`."""
    return _run("distil", config, fields)


def finetune(config: Source = None, /, **fields: Any) -> Run[Scored]:
    """Fine-tunes a model on a labelled task with several seeds, and scores each resulting model on the test examples.

    Args:
        config: the path of a YAML file, a list of paths (later files win), a mapping of sections, a `Config`, or
            None if the keyword arguments contain all fields.
        **fields: sections or fields that replace those of `config`, such as
            `finetune={"seeds": [0, 1, 2]}`.

    Returns:
        The run. `run.result` has the score of every seed, and the mean with its 95% interval.

    Raises:
        AdaptError: a field, a file or a model is wrong, or a stage failed. The message names the fault and the fix.
    """
    return _run("finetune", config, fields)


def evaluate(config: Source = None, /, **fields: Any) -> Run[ModelsCompared]:
    """Compares models by their loss on the held-out text of several domains.

    Args:
        config: the path of a YAML file, a list of paths (later files win), a mapping of sections, a `Config`, or
            None if the keyword arguments contain all fields.
        **fields: sections or fields that replace those of `config`, such as
            `comparison={"models": [...]}`.

    Returns:
        The run. `run.result` has the loss of every model on every domain.

    Raises:
        AdaptError: a field, a file or a model is wrong, or a stage failed. The message names the fault and the fix.
    """
    return _run("evaluate", config, fields)


def similarity(config: Source = None, /, **fields: Any) -> Run[Similar]:
    """Measures how similar domains are, by the words that they share.

    Args:
        config: the path of a YAML file, a list of paths (later files win), a mapping of sections, a `Config`, or
            None if the keyword arguments contain all fields.
        **fields: sections or fields that replace those of `config`, such as `corpus={"sources": [...]}`.

    Returns:
        The run. `run.result` has the similarity of each pair of domains.

    Raises:
        AdaptError: a field, a file or a model is wrong, or a stage failed. The message names the fault and the fix.
    """
    return _run("similarity", config, fields)


def vocabulary(action: str, config: Source = None, /, **fields: Any) -> Run[Any]:
    """Measures how a tokenizer splits the words of a domain, or changes a model's vocabulary.

    Args:
        action: `analyze` measures; `extend` adds tokens; `trim` removes unused tokens; `scratch` trains a new tokenizer
            and makes a model with random weights.
        config: as for `dapt`.
        **fields: as for `dapt`, such as `vocabulary={"size": 500}`.

    Returns:
        The run. After `extend`, `trim` and `scratch`, `run.load()` loads the new model with its tokenizer.

    Raises:
        AdaptError: a field, a file or a model is wrong, or a stage failed. The message names the fault and the fix.
    """
    return _run("vocabulary", config, {**flat_fields(fields), "vocabulary.action": action})


def advise(config: Source = None, /, **fields: Any) -> Run[Advice]:
    """Recommends a recipe, such as DAPT or TAPT, for a corpus and tasks. Nothing is trained.

    Args:
        config: the path of a YAML file, a list of paths (later files win), a mapping of sections, a `Config`, or
            None if the keyword arguments contain all fields.
        **fields: sections or fields that replace those of `config`, such as
            `advice={"budget_device_hours": 4}`.

    Returns:
        The run. `run.result` has the recipes in order, each with its cost and the reasons for and against it.

    Raises:
        AdaptError: a field, a file or a model is wrong, or a stage failed. The message names the fault and the fix.
    """
    return _run("advise", config, fields)


def tune(space: str | PathLike[str], config: Source = None, /, job: str | None = None, **fields: Any) -> SearchRun:
    """Searches for good values of a job's fields, with trials that are compared on dev examples.

    The best configuration is then run again with fresh seeds. Only these runs are scored on the test examples.

    Args:
        space: the name of a search space that comes with the package, such as `tapt`, or the path of a file.
        config: as for `dapt`.
        job: the job whose fields are searched. None means the job with the same name as the space.
        **fields: as for `dapt`. Section `tune` sets the number of trials, the objectives and the searcher.

    Returns:
        The search: all trials, the comparison of the best trial with the unchanged configuration, and `best`, the YAML
        file with the best values.

    Raises:
        AdaptError: the space or a field is wrong, or every trial failed.
    """
    named = {"tune.space": str(space), **({"tune.job": job} if job else {})}
    with _session():
        return run_search(search_of_command(arguments_of(config, {**fields, **named})))


def chain(
    file: str | PathLike[str],
    /,
    only: Mapping[str, float | str | Sequence[float | str]] | None = None,
    fields: Mapping[str, Any] | None = None,
    **let: Any,
) -> ChainStudy:
    """Reads a chain file, which describes several jobs. Nothing runs until `run()` is called on the result.

    Args:
        file: the path of the file, or the name of a recipe, such as `study`.
        only: the members to run of each set that the file sweeps over, keyed by set, such as `{"task": ["acl_arc"]}`.
            A number, such as 1e-4, names the member with the same value.
        fields: sections or fields of the configuration for all stages.
        **let: values of variables, which replace the values in the file's section `let`, such as `data="/data"`.

    Returns:
        The chain, with `plan()`, `run()`, `status()` and `report()`.

    Raises:
        ConfigError: the file cannot be read, or has an error, or a value has a type that nothing takes.
    """
    run = ChainRun.of(str(file), yaml_values(let), yaml_values(flat_fields(fields or {})))
    return ChainStudy(replace(run, only=member_names(only or {}, run.file.sets)))


@dataclass(frozen=True)
class ChainStudy:
    """Several jobs that one chain file describes. The function `dontstop.chain` returns an object of this class."""

    _chain: ChainRun

    def plan(self) -> ChainPlan:
        """Lists the stages that would run, and what they would cost. Nothing runs.

        Returns:
            The plan. `print(plan)` shows it as tables.

        Raises:
            AdaptError: a stage is configured wrongly.
        """
        with _session():
            return self._chain.plan()

    def run(self) -> Report:
        """Runs all unfinished stages, as many at once as the resources allow, and writes the report.

        Returns:
            The report, with the path of its HTML page.

        Raises:
            AdaptError: a stage failed. The report of the finished stages is written first.
        """
        with _session():
            return self._chain.run()

    def status(self) -> ChainNow:
        """Returns which stages are finished, running or waiting, even if another process runs the chain."""
        with _session():
            return self._chain.status()

    def report(self) -> Report:
        """Writes the report of all finished stages, and returns it."""
        with _session():
            return self._chain.report()


def plan(job: str, config: Source = None, /, **fields: Any) -> Plan:
    """Lists the stages that a job would run, with a reason per stage, and the cost of training. Nothing runs.

    Args:
        job: the name of the job, such as `dapt`.
        config: as for `dapt`.
        **fields: as for `dapt`.

    Returns:
        The plan. `print(plan)` shows it as tables.

    Raises:
        AdaptError: the job cannot run, because a field, a file or a model is wrong.
    """
    with _session():
        kind = job_of(job).kind
        return plan_of(job_of(job), Context.of(configuration(kind, config, fields), kind=kind))


@contextmanager
def _session() -> Iterator[None]:
    """Runs the block. Afterwards restores environment, loggers and signal handlers. On ctrl-C also shuts down Ray."""
    with as_library():
        try:
            yield
        except KeyboardInterrupt:
            disconnect()
            raise


def _run(name: str, config: Source, fields: Mapping[str, Any]) -> Run[Any]:
    job: Job = JOBS[name]
    with _session():
        context = Context.of(configuration(job.kind, config, fields), kind=job.kind)
        run = run_stages_of(job, context, arguments_of(config, fields))
        run.finish_push()
        return Run(run)


def configuration(kind: Kind, config: Source, fields: Mapping[str, Any]) -> Config:
    """Returns the configuration of a job, after the same checks as on the command line.

    Args:
        kind: the kind of job.
        config: the source of the configuration, such as the path of a YAML file. Fields of a `Config` that have the
            plain default get the default of the job.
        fields: fields that replace fields of `config`.

    Raises:
        ConfigError: a file cannot be read, or a field is unknown (the message suggests one) or has a wrong value.
    """
    return parse(arguments_of(config, fields), f"dontstop {kind.name}", kind)
