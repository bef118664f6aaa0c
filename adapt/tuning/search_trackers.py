"""Logs a search to TensorBoard and MLflow.

TensorBoard files are always written. The folder `tensorboard/trial-N` in the search's folder has the training loss of
trial N, and the trial's values and results, which TensorBoard shows on its page of hyperparameters. MLflow is used if
`tracking.mlflow_uri` is set. In MLflow, the search is a run, each trial is a run inside the search's run, and each
training run is a run inside its trial's run.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

from adapt.runner import Store
from adapt.runner.stage import everything
from adapt.stage.train import Train
from adapt.support.redact import redact, redacted
from adapt.terminal.console import log
from adapt.train.metric_trackers import ENVIRONMENT, anchored
from adapt.train.training_run import METRICS_FILE
from adapt.tuning.job_trial import Trial
from adapt.tuning.search_stage import Search, TrialRow

EXPERIMENT = "dontstop"
"""Name of the MLflow experiment. Training runs are logged to the same experiment."""
PARENT = "mlflow.parentRunId"
"""MLflow's tag for the parent of a nested run."""
FOLDER = "tensorboard"
DIGITS = 24
"""Number of leading digits of the search's key in MLflow tags."""


class SearchTrackers:
    """Logs the trials of a search while it runs."""

    def __init__(self, search: Search, folder: Path, store: Store) -> None:
        shutil.rmtree(folder / FOLDER, ignore_errors=True)  # trials are logged again, so old files are deleted
        self._search, self._store, self._folder = search, store, folder / FOLDER
        uri = anchored(search.config.tracking).mlflow_uri
        self._mlflow = SearchInMLflow(search, uri) if uri else None
        self._has_failed = False

    def note(self, row: TrialRow, trial: Trial | None) -> None:
        """Logs the result of a trial at its end or at an earlier measurement.

        Args:
            row: the result of the trial so far.
            trial: the stage of the trial; None if the trial has no stage, because its values contradict each other.
        """
        trainings = _trainings(self._search, trial)
        _note_in_tensorboard(self._folder, row, self._loss(trainings))
        if self._mlflow:
            with self._ignoring_errors():
                self._mlflow.note(row, trainings)

    def close(self, failed: bool = False) -> None:
        """Ends the run of the search in MLflow."""
        if self._mlflow:
            with self._ignoring_errors():
                self._mlflow.close(failed)

    @contextmanager
    def _ignoring_errors(self) -> Iterator[None]:
        """Ignores errors of MLflow, so that an outage of its server does not end the search. Logs the first error."""
        try:
            yield
        except Exception as error:
            if not self._has_failed:
                log(f"warning: MLflow lacks results of this search, which continues: {redact(str(error))}")
            self._has_failed = True

    def _loss(self, trainings: list[Train]) -> list[dict[str, Any]]:
        """Returns the logged metrics of the last training run of a trial, one entry per logged step."""
        if not trainings:
            return []
        last = trainings[0]
        file = self._store.folder(last.kind, last.name, last.key) / METRICS_FILE
        reports: list[dict[str, Any]] = []
        with suppress(OSError, ValueError):  # the file may be missing, or end with an incomplete line
            for line in file.read_text().splitlines():
                reports.append(json.loads(line))
        return reports


def _trainings(search: Search, trial: Trial | None) -> list[Train]:
    """Returns the training stages of a trial, the last stage first. Inputs of the whole search are left out."""
    given = {stage.key for stage in everything(search.inputs.values())}
    stages = everything([trial]) if trial else []
    return [stage for stage in stages if isinstance(stage, Train) and stage.key not in given]


def _note_in_tensorboard(folder: Path, row: TrialRow, reports: list[dict[str, Any]]) -> None:
    steps, figures = row.steps or 0, {name: figure.value for name, figure in row.figures.items()}
    target = folder / f"trial-{row.number}"
    with SummaryWriter(str(target), filename_suffix=f".{steps}") as writer:  # avoids equal names within a second
        for summary in hparams(_told(row.values), figures):
            writer.file_writer.add_summary(summary)
        for name, value in figures.items():
            writer.add_scalar(name, value, steps)
        for report in reports:
            if report.get("loss") is not None:
                writer.add_scalar("train/loss", report["loss"], report["step"])


def _told(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as numbers or strings for the trackers, without credentials."""
    plain = {name: value if isinstance(value, int | float) else str(value) for name, value in values.items()}
    return dict(redacted(plain))


class SearchInMLflow:
    """Logs a search to MLflow. When an interrupted search continues, it finds its earlier runs by their tags."""

    def __init__(self, search: Search, uri: str) -> None:
        os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
        from mlflow import MlflowClient

        self._client, self._search = MlflowClient(tracking_uri=uri), search
        known = self._client.get_experiment_by_name(EXPERIMENT)
        self._experiment = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
        tune = search.config.tune
        told = {"job": search.job.name, "space": search.space, "searcher": tune.searcher, "scheduler": tune.scheduler}
        self._run = self._run_of(search.key[:DIGITS], search.config.name, _told(told), {"dontstop.key": search.key})

    def note(self, row: TrialRow, trainings: list[Train]) -> None:
        """Logs a result of a trial, and makes its training runs children of the trial's run."""
        name = f"{self._search.key[:DIGITS]}-{row.number}"
        run = self._run_of(name, f"trial {row.number}", _told(row.values), {"dontstop.key": row.key, PARENT: self._run})
        for figure, measured in row.figures.items():
            self._client.log_metric(run, figure, measured.value, step=row.steps or 0)
        if row.error:
            self._client.set_tag(run, "dontstop.error", redact(row.error))
        self._client.set_terminated(run, "FAILED" if row.error else "FINISHED")
        for training in trainings:
            for found in self._found("dontstop.key", training.key):
                if PARENT not in found.data.tags:  # a run that trials share stays a child of the first trial
                    self._client.set_tag(found.info.run_id, PARENT, run)

    def close(self, failed: bool) -> None:
        """Ends the run of the search as finished or failed."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")

    def _found(self, tag: str, value: str) -> list[Any]:
        return list(self._client.search_runs([self._experiment], f"tags.`{tag}` = '{value}'"))

    def _run_of(self, name: str, shown: str, told: Mapping[str, Any], tags: Mapping[str, str]) -> str:
        """Returns the id of the run whose tag `dontstop.run` is `name`. Creates the run if there is none."""
        if earlier := self._found("dontstop.run", name):
            self._client.update_run(earlier[0].info.run_id, status="RUNNING")
            return str(earlier[0].info.run_id)
        made = self._client.create_run(self._experiment, tags={"dontstop.run": name, **tags}, run_name=shown)
        for field, value in told.items():
            self._client.log_param(made.info.run_id, field, value)
        return str(made.info.run_id)
