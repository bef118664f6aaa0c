"""Tests jobs on a cluster with token authentication and an uploaded working directory, as a user submits them."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from cluster.here.processes import free_port
from tests.samples import sentences

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
CONFIG = """
name: tiny
model:
  path: {model}
corpus:
  paths: corpus.jsonl
  heldout_fraction: 0.1
training:
  max_steps: 4
  global_batch_size: 8
  sequence_length: 64
  log_interval_steps: 2
evaluation:
  sequence_length: 64
  bootstrap_samples: 50
"""
# This code is added to the submitted copy of the package. Each process that loads the copy records the module's path.
NOTE = "__import__('pathlib').Path({folder!r}, str(__import__('os').getpid())).write_text(__file__)\n"


@dataclass(frozen=True)
class Cluster:
    """A head node on this machine, started with `ray start --head`."""

    folder: Path
    environment: dict[str, str]
    """Environment variables of the head node, and of clients that have the token."""
    address: str

    def ray(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", *arguments],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )

    def chain(self, folder: Path, *arguments: str) -> subprocess.Popen[str]:
        """Runs jobs/chain.py in a copy of the project in `folder`."""
        return subprocess.Popen(
            [sys.executable, "jobs/chain.py", *arguments, "--address", self.address],
            env=self.environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def submit(self, folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        options = ["--address", self.address, "--working-dir", str(folder)]
        return self.ray("job", "submit", *options, "--", *command, **environment)

    def processes(self) -> list[psutil.Process]:
        """Returns the processes whose command line contains the cluster's folder, and their descendants."""
        named = [p for p in psutil.process_iter(["cmdline"]) if str(self.folder) in " ".join(p.info["cmdline"] or [])]
        found = {}
        for process in named:
            with suppress(psutil.NoSuchProcess):
                found.update({p.pid: p for p in [process, *process.children(recursive=True)]})
        return list(found.values())

    def stop(self) -> None:
        for _ in range(5):  # Kills repeatedly, because the processes may start further processes in the meantime.
            for process in (processes := self.processes()):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(processes, timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("home")
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHON"))}
    environment |= {
        "HOME": str(folder),  # hides the Ray token of the user who runs the tests
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # with Ray's default of 15, other tests would take all cores
    }
    port, dashboard, client, agent = (str(free_port()) for _ in range(4))
    started = Cluster(
        Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp")),  # sockets in this folder need a short path
        environment,
        f"http://127.0.0.1:{dashboard}",
    )
    try:
        ran = started.ray(
            *("start", "--head", "--temp-dir", str(started.folder), "--num-cpus", "2"),
            *("--port", port, "--ray-client-server-port", client, "--dashboard-agent-listen-port", agent),
            *("--dashboard-host", "127.0.0.1", "--dashboard-port", dashboard),
            *("--object-store-memory", str(200 * 2**20)),
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        yield started
    finally:
        started.stop()
    assert started.processes() == []


def test_a_submission_without_the_token_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (tmp_path / "empty").mkdir()
    ran = cluster.submit(tmp_path / "empty", "touch", str(mark), RAY_AUTH_MODE="", RAY_AUTH_TOKEN_PATH="")
    assert ran.returncode != 0
    assert "Missing authentication token" in ran.stderr

    body = json.dumps({"entrypoint": f"touch {mark}"}).encode()
    guess = {"Authorization": f"Bearer {secrets.token_hex(32)}"}
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(urllib.request.Request(f"{cluster.address}/api/jobs/", body, guess))
    assert not mark.exists()


def test_a_submitted_job_runs_from_its_copy_and_leaves_a_model(
    cluster: Cluster, tiny_bert: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    submitted, notes, root = tmp_path / "submitted", tmp_path / "notes", tmp_path / "runs"
    notes.mkdir()
    for part in ("adapt", "jobs"):
        shutil.copytree(ROOT / part, submitted / part, ignore=shutil.ignore_patterns("__pycache__"))
    with (submitted / "adapt" / "__init__.py").open("a") as package:
        package.write(NOTE.format(folder=str(notes)))
    (submitted / "tiny.yaml").write_text(CONFIG.format(model=tiny_bert))
    lines = (json.dumps({"text": text}) + "\n" for text in sentences(400))
    (submitted / "corpus.jsonl").write_text("".join(lines))
    before = sorted(submitted.rglob("*"))

    ran = cluster.submit(submitted, "python", "jobs/dapt.py", "--config", "tiny.yaml", "--storage.root", str(root))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "step 4/4  loss" in ran.stdout

    (log,) = (cluster.folder / "session_latest" / "logs").glob("job-driver-*.log")
    last = log.read_text().splitlines()[-1]
    assert last in ran.stdout.splitlines()
    result = json.loads(last)
    assert result["stage"] == "dapt"
    assert result["metrics"]["steps"] == 4
    assert {"losses", "tokens_per_s"} <= result["metrics"].keys()
    model = Path(result["path"])
    assert model.parent == root / "export"
    AutoTokenizer.from_pretrained(model)
    _, problems = AutoModelForMaskedLM.from_pretrained(model, output_loading_info=True)
    assert not any(problems.values())

    places = [Path(note.read_text()) for note in notes.iterdir()]
    assert len(places) > 2  # The driver and at least two workers loaded the package.
    assert all(place.is_relative_to(cluster.folder) for place in places)
    assert sorted(submitted.rglob("*")) == before


CHAIN = """
name: souped
common: {{model.path: {model}, storage.root: {root}, training.sequence_length: 64, evaluation.sequence_length: 64}}
stages:
  one: {{job: merge, merge.models: [{model}]}}
  two: {{job: merge, from: one, merge.models: [{model}]}}
"""


def test_a_chain_continues_after_its_submitter_was_killed(cluster: Cluster, tiny_bert: Path, tmp_path: Path) -> None:
    project, root = tmp_path / "project", tmp_path / "runs"
    for part in ("adapt", "jobs", "cluster"):
        shutil.copytree(ROOT / part, project / part, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "chain.yaml").write_text(CHAIN.format(model=tiny_bert, root=root))

    first = cluster.chain(project, "submit", "chain.yaml")
    assert first.stderr
    # The chain logs `submitted` after it has checked the cluster.
    assert any("submitted dontstop-souped-" in line for line in first.stderr)
    first.kill()
    first.communicate()

    second = cluster.chain(project, "submit", "chain.yaml")
    out, err = second.communicate(timeout=1200)
    assert second.returncode == 0, err
    assert "which was submitted before" in err or "has succeeded" in err
    assert json.loads(out.splitlines()[-1])["metrics"]["status"] == "SUCCEEDED"
    assert sorted(folder.name.split("-")[0] for folder in (root / "merge").iterdir() if folder.is_dir()) == [
        "one",
        "two",
    ]
    listed = cluster.ray("job", "list", "--address", cluster.address)
    # The job that checked the cluster no longer exists.
    assert listed.stdout.count("submission_id='dontstop-souped-") == 1
    assert "dontstop-check" not in listed.stdout
    token = (Path(cluster.environment["RAY_AUTH_TOKEN_PATH"])).read_text()
    assert token not in listed.stdout + err
