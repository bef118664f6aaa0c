"""Writes a run's metrics to a file that the driver reads, to TensorBoard and Ray, and if configured to MLflow and W&B.

Ray's gauges are for the cluster's monitoring: Prometheus reads them on every node. The driver shows the metrics in the
file on its stderr: one live line on a terminal, and plain lines elsewhere.
"""

import importlib.util
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import urlsplit

from adapt.config import TrackingConfig, flat
from adapt.runner.files import lines_in, write_atomically
from adapt.support import errors, redact
from adapt.terminal.console import duration, log
from adapt.terminal.live import Display, display
from adapt.train.stopping import DEV
from adapt.train.training_run import MEASURED, METRICS_FILE, TrainingRun
from adapt.train.worker_process import CORE_WAIT, STARVED

ENVIRONMENT = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # otherwise, MLflow refuses to store runs in a folder
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_SILENT": "true",
}
NAME_FILE = "tracked.txt"
"""Name of the file with the training run's name in MLflow and W&B."""
_FAILED_S = 5.0
"""Time that trackers have to close after the run has failed [s]. The error is only shown after this time."""


class Tracker(Protocol):
    """A destination for metrics."""

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Stores the metrics of a step."""
        ...

    def close(self, failed: bool) -> None:
        """Writes buffered metrics and closes the tracker."""
        ...


def check_trackers(tracking: TrackingConfig) -> None:
    """Checks before any work starts that configured trackers are installed and that no address contains a password.

    Raises:
        ConfigError: a package is not installed, or MLflow's address contains a password, which messages would show.
    """
    if tracking.mlflow_uri and redact.has_password(tracking.mlflow_uri):
        raise errors.ConfigError(
            "tracking.mlflow_uri holds a password",
            "leave user and password out of the address; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in"
            " the environment",
        )
    for field, value, package in (
        ("mlflow_uri", tracking.mlflow_uri, "mlflow"),
        ("wandb_project", tracking.wandb_project, "wandb"),
    ):
        if value and importlib.util.find_spec(package) is None:
            raise errors.ConfigError(
                f"tracking.{field} is set but {package} is not installed", f"pip install 'dontstop[{package}]'"
            )


def mlflow_folder(tracking: TrackingConfig) -> Path | None:
    """Returns the folder that MLflow writes to. Returns None if MLflow uses a server or is not configured."""
    uri = tracking.mlflow_uri
    local = uri and urlsplit(uri).scheme in ("", "file") and uri not in ("databricks", "databricks-uc", "uc")
    return Path(urlsplit(uri).path).expanduser() if uri and local else None


def anchored(tracking: TrackingConfig) -> TrackingConfig:
    """Makes the path of MLflow's folder absolute, because workers have other working directories."""
    folder = mlflow_folder(tracking)
    return replace(tracking, mlflow_uri=str(folder.absolute())) if folder else tracking


class Trackers:
    """Context manager of all trackers of a run. Only rank 0 has active trackers."""

    def __init__(self, job: TrainingRun, step: int, active: bool) -> None:
        self._trackers = open_trackers(job, step) if active else []

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            for tracker in self._trackers:
                tracker.close(failed=False)
            return
        closing = threading.Thread(target=self._give_up, daemon=True)
        closing.start()
        closing.join(_FAILED_S)

    def _give_up(self) -> None:
        """Closes all trackers after a failure.

        Errors of trackers are ignored, because the error of the run is more important.
        """
        for tracker in self._trackers:
            with suppress(Exception):
                tracker.close(failed=True)

    def log(self, metrics: dict[str, Any]) -> None:
        """Passes the metrics of one report to every tracker."""
        for tracker in self._trackers:
            tracker.log(metrics, int(metrics["step"]))


def open_trackers(job: TrainingRun, step: int) -> list[Tracker]:
    """Opens the trackers that the run's configuration names, and those that every run has."""
    tracking = job.config.tracking
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    trackers: list[Tracker] = [File(Path(job.folder) / METRICS_FILE, step), TensorBoard(job, step)]
    trackers.append(RayMetrics(job.config.name, job.key))
    name = _name(job, step) if tracking.mlflow_uri or tracking.wandb_project else ""
    if tracking.mlflow_uri:
        trackers.append(MLflow(job, name, tracking.mlflow_uri))
    if tracking.wandb_project:
        trackers.append(WandB(job, name, tracking.wandb_project))
    return trackers


def _name(job: TrainingRun, step: int) -> str:
    """Returns the run's name in MLflow and W&B: a new name for a start at step 0, else the stored name.

    Trackers accept each step only once. So a training run that starts again at step 0 needs a new name.
    """
    file = Path(job.folder) / NAME_FILE
    if step == 0 or not file.exists():
        write_atomically(file, f"{job.key[:24]}-{os.urandom(4).hex()}")
    return file.read_text()


def _settings(job: TrainingRun) -> dict[str, Any]:
    """Returns the configuration as flat values, without the section `tracking` and without secrets."""
    settings = {name: value for name, value in flat(job.config).items() if not name.startswith("tracking.")}
    return dict(redact.redacted({name: _shown(value) for name, value in settings.items()}))


def _shown(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float) else str(value)


class File:
    """Writes metrics as JSON lines.

    At the start, removes incomplete lines, and lines of steps after the checkpoint from which the run resumes. Without
    a checkpoint (`step` 0), all lines are removed, because the measurement before the first step is repeated too.
    """

    def __init__(self, path: Path, step: int) -> None:
        lines = [line for line in lines_in(path) if isinstance(line.get("step"), int) and line["step"] <= step]
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines if step))
        self._file = path.open("a", buffering=1)

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Writes the metrics as one line, which is flushed at once."""
        self._file.write(json.dumps(metrics) + "\n")

    def close(self, failed: bool) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Writes event files to the stage's folder. `purge_step` hides steps that a resumed run repeats."""

    def __init__(self, job: TrainingRun, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(Path(job.folder) / "tensorboard"), purge_step=step + 1 if step else 0)

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Writes metrics of training under `train/`, and measurements of the model under `eval/`."""
        for name, value in metrics.items():
            measured = name.startswith(MEASURED)
            self._writer.add_scalar(f"eval/{name.removeprefix(MEASURED)}" if measured else f"train/{name}", value, step)

    def close(self, failed: bool) -> None:
        """Writes buffered events and closes the file."""
        self._writer.close()


class MLflow:
    """Logs each training run to an MLflow run, which a resumed job continues. Credentials come from the environment."""

    def __init__(self, job: TrainingRun, name: str, uri: str) -> None:
        import mlflow

        mlflow.set_tracking_uri(uri)
        self._mlflow, self._client = mlflow, mlflow.MlflowClient()
        experiment = mlflow.set_experiment("dontstop").experiment_id
        earlier = self._client.search_runs([experiment], f"tags.`dontstop.run` = '{name}'")
        self._known = earlier[0].data.metrics.get("step", -1) if earlier else -1  # the first report may be of step 0
        if earlier:
            self._run = earlier[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            tags = {"dontstop.key": job.key, "dontstop.run": name}
            self._run = self._client.create_run(experiment, tags=tags, run_name=job.config.name).info.run_id
            mlflow.log_params(_settings(job), run_id=self._run)

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Logs the metrics unless the run already has this step, because MLflow cannot replace logged values."""
        if step > self._known:
            self._mlflow.log_metrics(metrics, step=step, run_id=self._run)

    def close(self, failed: bool) -> None:
        """Ends the run. Unlike `mlflow.end_run`, this works from any thread."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


class WandB:
    """Logs each training run to a W&B run, which a resumed job continues. Credentials come from the environment."""

    def __init__(self, job: TrainingRun, name: str, project: str) -> None:
        import wandb

        self._run = wandb.init(
            project=project,
            id=name,
            name=job.config.name,
            resume="allow",
            dir=job.folder,
            config=_settings(job),
            settings=wandb.Settings(console="off"),
        )

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Logs the metrics. W&B itself ignores steps that the run already has."""
        self._run.log(metrics, step=step)

    def close(self, failed: bool) -> None:
        """Ends the run, with exit code 1 after a failure."""
        self._run.finish(exit_code=int(failed))


PREFIX = "dontstop_train_"
"""Prefix of the names of gauges. Ray adds `ray_` before it."""
TAGS = ("name", "key")


class RayMetrics:
    """Sets a Ray gauge for each number of a report, tagged with the run's name and the first digits of its key.

    Does nothing if this process is not connected to Ray. If a job starts Ray itself, this Ray instance does not collect
    gauges.
    """

    def __init__(self, name: str, key: str) -> None:
        import ray.util.metrics

        self._works, self._new = ray.is_initialized(), ray.util.metrics.Gauge
        self._tags = dict(zip(TAGS, (name, key[:16]), strict=True))
        self._gauges: dict[str, Any] = {}

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Sets the gauges to the numbers of a report."""
        if self._works:
            for name, value in metrics.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    if name not in self._gauges:
                        self._gauges[name] = self._new(gauge_name(name), f"{name} of a training", TAGS)
                    self._gauges[name].set(value, tags=self._tags)

    def close(self, failed: bool) -> None:
        """Does nothing, because Ray removes the gauges of a process that has ended."""


def gauge_name(metric: str) -> str:
    """Returns the name of a metric's gauge. It contains only characters that Prometheus accepts."""
    return PREFIX + re.sub(r"\W", "_", metric)


_PERIOD_S = 0.3
PARTS = {
    "loss": ("loss", "loss {:.3f}"),
    "domain": ("eval_domain_loss", "held-out {:.3f}"),
    "general": ("eval_general_loss", "general {:.3f}"),
    "earlier": ("eval_past_loss", "earlier {:.3f}"),
    "NPMI": ("npmi", "NPMI {:.3f}"),
    "best": ("best_npmi", "best {:.3f}"),
    "learning rate": ("learning_rate", "lr {:.2e}"),
    "speed": ("tokens_per_s", "{:,.0f} tokens/s"),
    "texts": ("texts_per_s", "{:,.0f} texts/s"),
    "MFU": ("mfu", "MFU {:.0%}"),
    "padding": ("padding", "padding {:.0%}"),
    "data wait": ("data_wait_share", "data wait {:.1%}"),
}
"""Parts of the progress line: name of each metric, and its text format. A report contains only some of the metrics."""
LEAST = (
    *("learning rate", "MFU", "padding", "speed", "texts", "data wait", "core wait", "spikes", "earlier", "general"),
    *("probe", "domain", "loss", "best", "NPMI", "ETA"),
)
"""Parts of the progress line, least important first. Narrow terminals leave out the least important parts."""


@contextmanager
def following(metrics: Path, notices: Path, waiting: str = "starting the workers") -> Iterator[None]:
    """Shows the metrics and messages that workers write, until the block ends.

    Args:
        metrics: file of metrics, as JSON lines.
        notices: file of messages to the user, as JSON lines.
        waiting: text that a terminal shows until the first report.
    """
    done = threading.Event()
    files = AppendedLines(metrics), AppendedLines(notices)
    with display(waiting, LEAST) as shown:
        thread = threading.Thread(target=copy_context().run, args=(_follow, *files, shown, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(timeout=5)


def _follow(metrics: "AppendedLines", notices: "AppendedLines", shown: Display, done: threading.Event) -> None:
    last = False
    known: dict[str, Any] = {}
    while not last:
        last = done.wait(_PERIOD_S)
        for notice in notices.new():
            log(f"train: {notice['said']}")
        for report in metrics.new():
            # Keeps the last values, because most reports contain no measurements, and some contain only measurements.
            known |= report
            report = known
            shown.update(describe(report), report["step"], report["steps"])


class AppendedLines:
    """Reads lines that are appended to a JSON lines file. The file may not exist yet, and may be replaced."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = file.stat().st_size if file.exists() else 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Yields the complete lines that were added since the last call."""
        if not self._file.exists():
            return
        with self._file.open("rb") as lines:
            self._position = min(self._position, lines.seek(0, os.SEEK_END))
            lines.seek(self._position)
            while (line := lines.readline()).endswith(b"\n"):
                self._position += len(line)
                try:
                    values = json.loads(line)
                except ValueError:
                    continue  # the file was replaced, and our position is in the middle of a line
                yield values


def describe(metrics: dict[str, Any]) -> dict[str, str]:
    """Formats the metrics of a report as texts for people. Shows the wait for CPU cores only if it is long."""
    eta = metrics.get("eta_s")
    probes = {key.removeprefix(MEASURED): score for key, score in metrics.items() if f".{DEV}" in key}
    return {
        "step": f"step {metrics['step']}/{metrics['steps']}",
        **{name: shown.format(metrics[key]) for name, (key, shown) in PARTS.items() if key in metrics},
        **({"core wait": f"core wait {share:.0%}"} if (share := metrics.get(CORE_WAIT, 0)) >= STARVED else {}),
        **({"probe": "  ".join(f"{name} {score:.3f}" for name, score in probes.items())} if probes else {}),
        **({"spikes": f"{count} skipped"} if (count := metrics.get("spikes", 0)) else {}),
        **({"ETA": f"ETA {duration(eta)}"} if eta is not None and metrics["step"] < metrics["steps"] else {}),
        **({"ETA": "done"} if metrics["step"] == metrics["steps"] else {}),
    }
