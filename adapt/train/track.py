"""Where a run's metrics go: a file that the driver follows, TensorBoard always, MLflow and W&B when asked for."""

import importlib.util
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from adapt.config import TrackingConfig, flat
from adapt.errors import ConfigError
from adapt.train.job import METRICS_FILE, Job


class Tracker(Protocol):
    """Somewhere that keeps metrics."""

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Keeps the metrics of a step."""
        ...

    def close(self) -> None:
        """Flushes."""
        ...


def check_trackers(tracking: TrackingConfig) -> None:
    """Looks for the packages of the trackers asked for, before anything is started.

    Raises:
        ConfigError: one is not installed.
    """
    for field, wanted, package in (
        ("mlflow_uri", tracking.mlflow_uri, "mlflow"),
        ("wandb_project", tracking.wandb_project, "wandb"),
    ):
        if wanted and importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"tracking.{field} is set but {package} is not installed", f"pip install 'dontstop[{package}]'"
            )


class Trackers:
    """All trackers of a run, open while it trains. Only rank 0's is active."""

    def __init__(self, job: Job, step: int, active: bool) -> None:
        self._trackers = _open(job, step) if active else []

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tracker in self._trackers:
            tracker.close()

    def log(self, metrics: dict[str, Any]) -> None:
        """Hands the metrics of one report to every tracker."""
        for tracker in self._trackers:
            tracker.log(metrics, int(metrics["step"]))


def _open(job: Job, step: int) -> list[Tracker]:
    tracking = job.config.tracking
    trackers: list[Tracker] = [File(Path(job.folder) / METRICS_FILE, step), TensorBoard(job, step)]
    if tracking.mlflow_uri:
        trackers.append(MLflow(job, tracking.mlflow_uri))
    if tracking.wandb_project:
        trackers.append(WandB(job, tracking.wandb_project))
    return trackers


class File:
    """JSON lines. Lines of steps that a crash took back are removed at the start."""

    def __init__(self, path: Path, step: int) -> None:
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
        path.write_text("".join(line + "\n" for line in kept))
        self._file = path.open("a", buffering=1)

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """One line, flushed."""
        self._file.write(json.dumps(metrics) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Event files in the stage's folder; `purge_step` hides what a crash took back."""

    def __init__(self, job: Job, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(Path(job.folder) / "tensorboard"), purge_step=step or None)

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """One scalar a metric, under `train/`."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"train/{name}", value, step)

    def close(self) -> None:
        """Writes what is buffered."""
        self._writer.close()


class MLflow:
    """One MLflow run a stage key; a resumed job continues it."""

    def __init__(self, job: Job, uri: str) -> None:
        import mlflow

        self._mlflow = mlflow
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment("dontstop")
        earlier = mlflow.search_runs(filter_string=f"tags.`dontstop.key` = '{job.key}'", output_format="list")
        if earlier:
            mlflow.start_run(run_id=earlier[0].info.run_id)
        else:
            mlflow.start_run(run_name=job.config.name, tags={"dontstop.key": job.key})
            mlflow.log_params(flat(job.config))

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Logs the numbers."""
        self._mlflow.log_metrics(metrics, step=step)

    def close(self) -> None:
        """Ends the run."""
        self._mlflow.end_run()


class WandB:
    """One W&B run a stage key; a resumed job continues it. Credentials come from the environment only."""

    def __init__(self, job: Job, project: str) -> None:
        import wandb

        os.environ.setdefault("WANDB_SILENT", "true")
        self._run = wandb.init(
            project=project,
            id=job.key[:32],
            name=job.config.name,
            resume="allow",
            dir=job.folder,
            config=flat(job.config),
        )

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Logs the numbers."""
        self._run.log(metrics, step=step)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()
