"""Tests the cluster on this machine: its start commands, and that no process remains after its end."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from adapt.runner.record import Record
from adapt.submit.cluster_check import limits_in
from adapt.submit.submit_order import order_of
from adapt.support.errors import ClusterError
from cluster.here import autoscaler
from cluster.here.demonstrations import STEPS, arguments
from cluster.here.nodes import FOLDER, Node, Nodes
from cluster.here.processes import end_all, free_port, processes, wait_for_line
from cluster.here.submission import Reports, Story, Submission, exported

pytestmark = pytest.mark.heavy

CHILD = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); print('up', flush=True)"


def started(program: str, said: Path, **environment: str) -> "subprocess.Popen[bytes]":
    with said.open("wb") as out:
        return subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **environment}, stdout=out)


def test_all_processes_of_a_node_end_and_no_others(tmp_path: Path) -> None:
    one, ten = f"{tmp_path}/node-1/", f"{tmp_path}/node-10/"
    parents = [started(f"{CHILD}; time.sleep(600)", tmp_path / name[-3:-1], **{FOLDER: name}) for name in (one, ten)]
    for parent, name in zip(parents, (one, ten), strict=True):
        assert wait_for_line(tmp_path / name[-3:-1], "up", parent, 60)
    found = list(processes(FOLDER, one))
    assert len(found) == 2  # the node's process and its child, although the child has a separate session
    assert end_all(FOLDER, one) == 2
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in found)
    assert parents[1].poll() is None
    assert end_all(FOLDER, str(tmp_path)) == 2
    assert end_all(FOLDER, str(tmp_path)) == 0
    for parent in parents:
        parent.wait()


DETACHED = """
import os, subprocess, sys, time
nowhere = subprocess.DEVNULL
if not os.fork():  # detached: no parent, own session, and no variable, file or title that names its node
    os.setsid()
    child = subprocess.Popen(["sleep", "600"], env={}, cwd="/", stdin=nowhere, stdout=nowhere, stderr=nowhere)
    with open(sys.argv[1] + ".part", "w") as file:
        file.write(str(child.pid))
    os.rename(sys.argv[1] + ".part", sys.argv[1])
    os._exit(0)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print("Ray runtime started", flush=True)
time.sleep(600)
"""
STARTER = """
import sys, time
from pathlib import Path
from cluster.here.nodes import Node
Node.command = [sys.executable, "-c", sys.argv[2], sys.argv[1] + "/pid"]
Node(1, Path(sys.argv[1]) / "1", [], {}).start()
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def detached(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[bytes]", psutil.Process, psutil.Process, Path]]:
    """Yields three processes and the folder of a node.

    The processes are the starter of the node, the keeper (which ends the node's processes), and a detached process.
    """
    with (tmp_path / "up").open("wb") as out:
        command = [sys.executable, "-c", STARTER, str(tmp_path), DETACHED]
        starter = subprocess.Popen(command, stdout=out)
    try:
        assert wait_for_line(tmp_path / "up", "up", starter, 60)
        (keeper,) = psutil.Process(starter.pid).children()
        yield starter, keeper, psutil.Process(int((tmp_path / "pid").read_text())), tmp_path / "1"
    finally:
        starter.kill()
        starter.wait()
        end_all(FOLDER, str(tmp_path))


def gone(process: psutil.Process) -> bool:
    try:
        process.wait(60)
    except psutil.TimeoutExpired:
        return False
    return True


def test_a_detached_process_is_found_and_ends_with_its_node(detached: Any) -> None:
    starter, _, hidden, folder = detached
    assert hidden in processes(FOLDER, f"{folder}/")
    Node(1, folder, [], {}).lose()
    assert gone(hidden)
    assert not list(processes(FOLDER, f"{folder}/"))
    assert starter.poll() is None


@pytest.mark.parametrize("killed", ["starter", "leader"])
def test_all_processes_of_a_node_end_when_its_starter_or_leader_is_killed(detached: Any, killed: str) -> None:
    starter, keeper, hidden, _ = detached
    (leader,) = [each for each in keeper.children() if each != hidden]
    (starter if killed == "starter" else leader).kill()
    assert gone(hidden)
    assert gone(leader)
    if killed == "starter":
        assert gone(keeper)


def test_a_process_is_found_by_its_open_log_files(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    with (tmp_path / "node" / "worker.out").open("w") as out:
        process = subprocess.Popen(["sleep", "600"], env={}, stdout=out)
    # a process that only has the folder as its working directory, such as a user's shell, must not be ended
    with subprocess.Popen(["sleep", "600"], cwd=tmp_path / "node", env={}) as other:
        assert end_all(FOLDER, f"{tmp_path}/node/") == 1
        process.wait(60)
        assert other.poll() is None
        other.kill()


def test_a_process_that_ends_without_the_expected_line_is_not_waited_for(tmp_path: Path) -> None:
    process = started("print('down')", tmp_path / "said")
    assert not wait_for_line(tmp_path / "said", "up", process, 60)
    process = started("print('up')", tmp_path / "said")
    assert wait_for_line(tmp_path / "said", "up", process, 60)
    process.wait()


@pytest.mark.parametrize("failing", [2, 3])
def test_a_node_that_does_not_start_is_started_twice_more(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"""
import pathlib, sys, time
tries = pathlib.Path("{tmp_path}/tries")
tries.write_text((tries.read_text() if tries.exists() else "") + "x")
if len(tries.read_text()) <= {failing}:
    sys.exit("no answer")
print("Ray runtime started", flush=True)
time.sleep(600)
"""
    monkeypatch.setattr(Node, "command", [sys.executable, "-c", program])
    node = Node(1, tmp_path / "node", [], dict(os.environ))
    if failing == 2:
        node.start()
    else:
        with pytest.raises(ClusterError, match="node 1 did not start: no answer"):
            node.start()
    assert (tmp_path / "tries").read_text() == "xxx"
    assert end_all(FOLDER, f"{node.folder}/") == 3 - failing


def test_ports_are_outside_of_the_ephemeral_range() -> None:
    lowest, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    ports = {free_port() for _ in range(50)}
    assert max(ports) < int(lowest)
    assert len(ports) > 40  # ports are random, so that two clusters that start at the same time choose different ports
    with socket.create_server(("127.0.0.1", min(ports))):
        pass


def test_a_cluster_requires_its_own_token_and_stays_on_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    begun: list[Node] = []
    monkeypatch.setattr(Node, "start", lambda self: begun.append(self))
    cluster = Nodes(tmp_path, with_jobs=True)
    head, other = cluster.start_head(), cluster.add(2, "--resources", '{"x": 1}')
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert begun == [head, other]
    assert (head.host, other.host) == ("127.0.0.2", "127.0.0.3")
    assert head.folder != other.folder
    for node in begun:
        assert node.environment["RAY_AUTH_MODE"] == "token"
        assert node.environment["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token")
        assert "RAY_ADDRESS" not in node.environment
        assert (tmp_path / "token").read_text() not in " ".join(node.command)
    assert "--head" in head.command
    assert other.command[other.command.index("--address") + 1] == cluster.address
    assert cluster.address == f"127.0.0.2:{head.command[head.command.index('--port') + 1]}"
    assert cluster.dashboard.rpartition(":")[2] in head.command
    cluster.stop()
    assert not head.folder.parent.exists()


def test_the_demo_is_a_job_that_can_be_submitted(tmp_path: Path) -> None:
    order = order_of(arguments(tmp_path, tmp_path / "model", "[1,2]", "--name", "one"))
    (config,) = order.configs
    assert order.program == "dapt"
    assert config.storage.root == str(tmp_path / "runs")
    assert config.model.path == str(tmp_path / "model")
    assert config.resources.workers == (1, 2)
    assert config.training.max_steps == STEPS
    assert config.corpus.paths == str(tmp_path / "text.jsonl")
    texts = [json.loads(line)["text"] for line in (tmp_path / "text.jsonl").read_text().splitlines()]
    assert len(texts) > 1000
    assert all(" ".join(text.split()) == text for text in texts)


def test_the_autoscaler_file_is_one_that_checks_can_read(tmp_path: Path) -> None:
    from ray.autoscaler._private.util import validate_config

    option, file = autoscaler.head_arguments(tmp_path, "127.0.0.1:6379", 3, 2)
    assert option == "--autoscaling-config"
    validate_config(json.loads(Path(file).read_text()))
    ((resources, most),) = limits_in(Path(file))
    assert (resources["CPU"], most) == (3, 2)


def test_reports_show_the_step_at_which_a_training_restarted(tmp_path: Path) -> None:
    file = tmp_path / "train" / "demo-0" / "metrics.jsonl"
    file.parent.mkdir(parents=True)

    def write(steps: int, name: str) -> None:
        lines = "".join(json.dumps({"step": step}) + "\n" for step in range(1, steps + 1))
        (file.parent / name).write_text(f'{lines}{{"ste')  # the last line is incomplete
        (file.parent / name).rename(file)

    write(7, "a")
    reports = Reports(tmp_path)
    assert reports.steps() == [1, 2, 3, 4, 5, 6, 7]
    resumed = reports.beginning_again()
    assert resumed() is None
    write(5, "b")
    assert resumed() is None
    with file.open("a") as more:
        more.write('p": 6}\n')
    assert resumed() == 5


def test_what_a_model_has_learnt_is_read_from_its_record(tmp_path: Path) -> None:
    folder = tmp_path / "export" / "demo-0"
    folder.mkdir(parents=True)
    losses = {"losses": {"domain": {"before": {"value": 8.5}, "after": {"value": 4.5}}}}
    Record("export", "demo", "0" * 64, 1, {}, {}, losses, {}, {}, {}, {}, "2026-01-01", folder).save()
    assert exported(tmp_path) == losses


def test_a_refused_submission_is_reported_and_ends(tmp_path: Path) -> None:
    submission = Submission(["nowhere.yaml", "--address", "http://127.0.0.1:1"], dict(os.environ), "one")
    with pytest.raises(Exception, match="has ended before it trains"):
        submission.wait(lambda: False, "it trains")
    with pytest.raises(Exception, match="one ended with exit code"):
        submission.end()
    assert submission.has_said("nowhere.yaml")
    assert not submission.has_said("nowhere.yaml", since=len(submission.said))


def test_messages_of_a_story_are_printed_again_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    story = Story()
    story.tell("it rains")
    story.retell()
    assert next(line for line in capsys.readouterr().err.splitlines() if "it rains" in line) == "== it rains"
    assert capsys.readouterr().err == ""


FOLLOWING = """
import os, sys, time
from cluster.here import submission
submission.ROOT = sys.argv[1]  # where `jobs/chain.py` waits
submission.Submission([], dict(os.environ), "one")
time.sleep(600)
"""


@pytest.mark.parametrize("ended", ["stopped", "killed"])
def test_a_submission_ends_with_the_process_that_follows_it(
    ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "chain.py").write_text(
        "import os, time; open('part', 'w').write(str(os.getpid())); os.rename('part', 'pid'); time.sleep(600)"
    )

    def follower() -> psutil.Process:
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        return psutil.Process(int((tmp_path / "pid").read_text()))

    if ended == "stopped":
        monkeypatch.setattr("cluster.here.submission.ROOT", tmp_path)
        submission = Submission([], dict(os.environ), "one")
        follows = follower()
        submission.stop()
    else:
        with subprocess.Popen([sys.executable, "-c", FOLLOWING, str(tmp_path)]) as starter:
            follows = follower()
            starter.kill()
    assert gone(follows)
