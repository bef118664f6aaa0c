"""Tests that a job ends with one error message when Ray's processes die or do not answer."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.drive import run_forked

pytestmark = pytest.mark.heavy

KILL = """
import os, signal, sys, time
from adapt.config import ResourcesConfig
from adapt.terminal.console import run_job
from adapt.ray.guard import processes_of
from adapt.ray.runtime import connect

def job():
    connect(ResourcesConfig())
    (process,) = [each for each in processes_of(os.environ["DONTSTOP_OWN_RAY"]) if each.name() == sys.argv[1]]
    process.kill()
    time.sleep(600)

run_job(job)
"""


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_a_process_of_ray_that_dies_ends_the_job_with_one_message(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:  # a crashed Ray leaves its logs behind
        monkeypatch.setenv("RAY_TMPDIR", folder)
        script = Path(folder, "kill.py")
        script.write_text(KILL)
        done = run_forked([str(script), name], Path(folder))
    assert done.returncode == 7
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    # on a busy machine, the job prints that Ray is still starting
    started, *said = (line for line in lines if not line.startswith("still starting"))
    assert started == "starting Ray on this machine"
    assert len(said) == 2, done.stderr
    assert f"TrainingError: Ray's process {name} on this machine was killed" in said[0]
    assert "run the same command again" in said[1]


DEAF = """
import ctypes
from adapt.terminal.console import log, run_job
from adapt.ray.guard import heeding_signals

def job():
    mutex = ctypes.create_string_buffer(64)
    library = ctypes.CDLL(None)
    library.pthread_mutex_lock(mutex)
    with heeding_signals("waiting", "be patient"):
        log("ready")
        library.pthread_mutex_lock(mutex)  # for ever, and no signal ends it

run_job(job)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_process_while_compiled_code_does_not_return(number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", DEAF], stderr=subprocess.PIPE, text=True)
    assert process.stderr
    assert process.stderr.readline() == "ready\n"
    time.sleep(0.2)
    os.kill(process.pid, number)
    assert "Interrupted: the job was stopped before it finished" in process.communicate(timeout=120)[1]
    assert process.returncode == 130
