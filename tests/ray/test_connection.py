"""Tests the local Ray cluster of a job (processes, access by others, start-up), and addresses of Ray clusters."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import psutil
import pytest
from ray._private import services

import adapt.ray.connection
from adapt.config import ResourcesConfig
from adapt.ray.connection import OWN_RAY, endpoint, private_folder, start_ray
from adapt.ray.guard import processes_of
from adapt.ray.runtime import LOOPBACK, address_of, check_address, connect
from adapt.support.errors import ClusterError
from tests.drive import gone

PATIENCE_S = 300


def test_a_joined_cluster_does_not_count_as_a_ray_that_we_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that our Ray started has OWN_RAY set. Joining another cluster must remove the variable."""
    monkeypatch.setenv(OWN_RAY, "/tmp/dontstop-1")
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("adapt.ray.runtime._made", {})
    connect(ResourcesConfig(address="10.0.0.1:6379"))
    assert OWN_RAY not in os.environ


# --- access by other users and other machines


@pytest.mark.usefixtures("ray_cluster")
def test_other_users_cannot_enter_its_folder_or_read_its_token() -> None:
    folder = Path(os.environ[OWN_RAY])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    started = {process.name(): process for process in processes_of(folder)}
    assert set(started) == {"gcs_server", "raylet"}
    (token,) = {process.environ()["RAY_AUTH_TOKEN"] for process in started.values()}
    assert len(token) == 64
    for file in folder.rglob("*"):
        assert not file.is_file() or token.encode() not in file.read_bytes(), file
    # the job's environment does not contain the token, because other child processes would inherit the token
    assert os.environ.get("RAY_AUTH_TOKEN") != token


@pytest.mark.slow
@pytest.mark.parametrize("first", ["", "import ray, ray.train; "])
def test_a_training_listens_on_loopback_and_leaves_no_process_if_it_is_killed(tmp_path: Path, first: str) -> None:
    """No process is forked, as in a user's job, so all processes must end by themselves after SIGKILL.

    Ray reads its switch for loopback addresses when it is imported, which a user's program may do first.
    """
    given = ("RAY_ADDRESS", LOOPBACK)
    environment = {name: value for name, value in os.environ.items() if name not in given}
    command = f"{first}from tests.ray.two_ranks import train_two_ranks; train_two_ranks({str(tmp_path)!r})"
    root, file, errors = Path(__file__).parents[2], tmp_path / "found", tmp_path / "errors"
    with errors.open("w") as stderr:
        driver = subprocess.Popen([sys.executable, "-c", command], cwd=root, env=environment, stderr=stderr)
    while not file.exists():
        assert driver.poll() is None, errors.read_text()
        time.sleep(0.1)
    folder, world, summed, *addresses = file.read_text().splitlines()
    assert (world, summed) == ("2", "2.0")
    assert len(addresses) > 8  # the list includes the addresses on which gloo listens
    assert set(addresses) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}

    started = belonging_to(Path(folder))
    assert sum("RayTrainWorker" in name for name in started.values()) == 2
    driver.kill()
    assert driver.wait(PATIENCE_S) == -signal.SIGKILL
    assert left_of(started, Path(folder)) == []
    adapt.ray.connection.remove(Path(folder))  # after SIGKILL, the folder with Ray's logs stays for a day


def test_an_untested_ray_that_was_imported_first_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its private switch, it would listen on all addresses of the machine."""
    monkeypatch.setattr("importlib.metadata.version", lambda package: "3.0.0")
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("adapt.ray.runtime._set_environment", lambda address: None)  # would change this process
    monkeypatch.delenv(LOOPBACK, raising=False)
    with pytest.raises(ClusterError, match=r"imported Ray 3\.0\.0 before") as caught:
        connect(ResourcesConfig())
    assert caught.value.fix == f"set the environment variable {LOOPBACK}=0 before the program starts"


@pytest.mark.usefixtures("ray_cluster")
def test_ray_train_does_not_contact_the_dashboard_of_another_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray Train would end the training if it used another cluster's dashboard, which does not know our controller."""
    import ray

    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://10.0.0.1:8265")
    address = ray.get(ray.remote(num_cpus=0)(lambda: os.environ["RAY_API_SERVER_ADDRESS"]).remote())
    parts = urlsplit(address)
    assert parts.hostname == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((parts.hostname, parts.port))


# --- processes and folders after the end of the driver

WORK = """
import os, time, ray
from pathlib import Path
from adapt.config import ResourcesConfig
from adapt.terminal.console import run_job
from adapt.ray.runtime import connect

def job():
    connect(ResourcesConfig())
    ray.get([ray.remote(num_cpus=0)(lambda: os.getpid()).remote() for _ in range(2)])
    print(os.environ["DONTSTOP_OWN_RAY"], flush=True)
    time.sleep(600)

run_job(job)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_no_process_and_no_folder_remain(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is interrupted. Other tests in this file let it end normally and kill it."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    driver = subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE, text=True)
    assert driver.stdout
    folder = Path(driver.stdout.readline().strip())
    started = belonging_to(folder)
    assert len(started) > 4
    driver.send_signal(number)
    assert driver.wait(PATIENCE_S) == 130
    assert left_of(started, folder) == []
    assert not folder.exists()


def belonging_to(folder: Path) -> dict[psutil.Process, str]:
    """Returns the processes of our local Ray cluster and its driver, with their command lines.

    These processes have the folder in their environment.
    """
    found: dict[psutil.Process, str] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(OWN_RAY) == str(folder):
                found[process] = " ".join(process.cmdline())
    return found


def left_of(started: dict[psutil.Process, str], folder: Path) -> list[str]:
    """Waits until all processes of our Ray cluster end, and returns the command lines of those that do not end."""
    deadline = time.monotonic() + PATIENCE_S
    gone([*started], PATIENCE_S)
    while (left := belonging_to(folder)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return [*left.values()]


# --- the folder of our Ray

USE = """
import os, ray
from adapt.config import ResourcesConfig
from adapt.ray.runtime import connect
from adapt.terminal.console import run_job

def job():
    connect(ResourcesConfig())
    assert ray.get(ray.remote(lambda: 6 * 7).remote()) == 42
    print(os.environ["DONTSTOP_OWN_RAY"])

run_job(job)
"""


@pytest.mark.heavy
def test_it_needs_no_home_and_no_short_tmpdir_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "a_long_path_as_batch_systems_make_them" / "größe"
    folder.mkdir(parents=True)
    environment = {**os.environ, "HOME": "/proc/nobody", "TMPDIR": str(folder), "RAY_ADDRESS": "local"}
    done = subprocess.run([sys.executable, "-c", USE], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    ours = Path(done.stdout.strip())
    assert ours.name.startswith("dontstop-")
    assert left_of({}, ours) == []
    assert not ours.exists()
    assert list(folder.iterdir()) == []


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Returns a folder with a short path, and sets RAY_TMPDIR so that it is the first choice for Ray's folder."""
    folder = Path("/tmp") / f"t{os.getpid()}"
    folder.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    yield folder
    adapt.ray.connection.remove(folder)


def test_a_folder_is_private_and_in_the_requested_parent(short: Path) -> None:
    folder = private_folder()
    assert folder.parent == short
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["x" * 60, "größe"])
def test_folders_with_paths_too_long_for_sockets_are_skipped(
    short: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (short / name).mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(short / name))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(short))
    assert private_folder().parent == short


def test_if_no_folder_can_be_written_the_error_names_tmpdir(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(prefix: str, dir: str) -> str:
        raise PermissionError(13, "Permission denied", dir)

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(ClusterError, match="/tmp: Permission denied") as caught:
        private_folder()
    assert "set TMPDIR" in caught.value.fix


def test_what_a_killed_process_left_is_removed_a_day_later(short: Path) -> None:
    killed, young, lives, no_lock = (short / f"dontstop-{name}" for name in ("killed", "young", "lives", "none"))
    for folder in (killed, young, no_lock):
        folder.mkdir()
    lives = private_folder()
    for folder in (killed, young):
        (folder / "lock").touch()
    yesterday = time.time() - 25 * 3600
    for folder in (killed, lives, no_lock):
        os.utime(folder, (yesterday, yesterday))
    private_folder()
    assert not killed.exists()
    assert young.exists()
    assert lives.exists()
    assert no_lock.exists()


# --- slow and failed starts


def test_a_slow_start_is_repeated(monkeypatch: pytest.MonkeyPatch, short: Path) -> None:
    tried: list[Path] = []

    def start(folder: Path) -> None:
        tried.append(folder)
        if len(tried) == 1:
            raise RuntimeError("The current node timed out during startup.")

    monkeypatch.setattr(adapt.ray.connection, "_SLOW_S", 0.0)
    monkeypatch.setattr(adapt.ray.connection, "start_once", start)
    start_ray()
    assert [folder.exists() for folder in tried] == [False, True]


def test_a_failed_start_is_explained_and_not_reported_as_a_bug(monkeypatch: pytest.MonkeyPatch, short: Path) -> None:
    def start(folder: Path) -> None:
        raise OSError("no such device")

    monkeypatch.setattr(adapt.ray.connection, "start_once", start)
    with pytest.raises(ClusterError, match=r"did not start on this machine .*: no such device") as caught:
        start_ray()
    assert str(short) in caught.value.fix


def test_the_logs_of_a_failed_start_stay_after_the_process(short: Path) -> None:
    script = """
import ray
from adapt.ray.connection import start_ray

def fail(**options):
    raise RuntimeError("no room")

ray.init = fail
start_ray()
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(short)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert "no room" in ran.stderr
    assert [folder.name.startswith("dontstop-") for folder in short.iterdir()] == [True]


def test_a_repeated_start_waits_longer_for_the_raylet(monkeypatch: pytest.MonkeyPatch, short: Path) -> None:
    asked: list[str] = []

    def node(address: str, node_id: str) -> str:
        asked.append(address)
        if len(asked) < 5:
            raise RuntimeError("not registered yet")
        return "node"

    def start(folder: Path) -> None:
        assert services.get_node("head", "id") == "node"

    monkeypatch.setattr(services, "get_node", node)
    monkeypatch.setattr(adapt.ray.connection, "_SLOW_S", 0.0)
    monkeypatch.setattr(adapt.ray.connection, "start_once", start)
    start_ray()
    assert len(asked) == 5  # the first start asked once, and failed
    assert vars(services)["get_node"] is node


def test_a_repeated_start_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch, short: Path) -> None:
    def node(address: str, node_id: str) -> None:
        raise RuntimeError("not registered yet")

    monkeypatch.setattr(services, "get_node", node)
    monkeypatch.setattr(adapt.ray.connection, "_SLOW_S", 0.0)
    monkeypatch.setattr(adapt.ray.connection, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(adapt.ray.connection, "start_once", lambda _: services.get_node("head", "id"))
    with pytest.raises(ClusterError, match="not registered yet"):
        start_ray()


def test_processes_of_a_failed_start_are_killed(monkeypatch: pytest.MonkeyPatch, short: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(folder: Path) -> None:
        command = [sys.executable, "-c", "import time; time.sleep(600)", f"--temp-dir={folder}/r"]
        started.append(subprocess.Popen(command))
        raise RuntimeError("no room")

    monkeypatch.setattr(adapt.ray.connection, "start_once", start)
    with pytest.raises(ClusterError, match="no room"):
        start_ray()
    assert [process.wait(PATIENCE_S) for process in started] == [-signal.SIGKILL]


def test_a_user_without_a_home_folder_gets_one(monkeypatch: pytest.MonkeyPatch, short: Path) -> None:
    """Some containers run with an arbitrary user id, for which no home folder is known."""
    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr("atexit.register", lambda *_: None)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.setenv("HOME", "")
    monkeypatch.setenv(OWN_RAY, "")
    adapt.ray.connection.start_once(short)
    assert os.environ["HOME"] == str(short)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1:6379", ("10.0.0.1", 6379)),
        ("head:6379", ("head", 6379)),
        ("[::1]:6379", ("::1", 6379)),
        ("[fd00::12]:6380", ("fd00::12", 6380)),
        ("ray://head:10001", ("head", 10001)),
        ("ray://[fd00::12]:10001", ("fd00::12", 10001)),
    ],
)
def test_an_address_has_a_host_and_a_port(address: str, expected: tuple[str, int]) -> None:
    assert endpoint(address, "RAY_ADDRESS") == expected


@pytest.mark.parametrize(
    "address",
    ["head", "10.0.0.1", "::1:6379", "fd00::1", "[::1]", "head:x", "head:99999", "ftp://head:1", ":6379", "a:1/b"],
)
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(ClusterError, match=r"RAY_ADDRESS is .* not the address of a Ray cluster") as caught:
        endpoint(address, "RAY_ADDRESS")
    assert "[fd00::1]:6379" in caught.value.fix


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265", "https://ray.example.org"])
def test_the_address_of_a_dashboard_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ClusterError, match=r"RAY_ADDRESS is http.* dashboard") as caught:
        check_address(ResourcesConfig())
    assert f"ray job submit --address {address}" in caught.value.fix
    with pytest.raises(ClusterError, match=r"resources\.address is http"):
        check_address(ResourcesConfig(address=address))


def test_local_and_no_address_start_ray_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert address_of(ResourcesConfig()) is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert address_of(ResourcesConfig()) == "10.0.0.1:6379"
    assert address_of(ResourcesConfig(address="local")) is None


def raylet(*command: str) -> SimpleNamespace:
    return SimpleNamespace(info={"name": "raylet", "cmdline": ["/bin/raylet", *command]})


def test_auto_finds_the_cluster_with_a_node_on_this_machine_but_no_ray_of_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [
        raylet("--gcs-address=127.0.0.1:1", "--raylet_socket_name=/tmp/dontstop-x/r/raylet"),
        SimpleNamespace(info={"name": "python", "cmdline": ["--gcs-address=10.0.0.3:1"]}),
        SimpleNamespace(info={"name": "raylet", "cmdline": None}),
    ]
    here = [raylet("--gcs-address=10.0.0.1:6379"), raylet("--gcs-address=10.0.0.1:6379")]
    running = [*others, *here]
    monkeypatch.setattr("psutil.process_iter", lambda _: iter(running))
    assert endpoint("auto", "RAY_ADDRESS") == ("10.0.0.1", 6379)
    running.append(raylet("--gcs-address=10.0.0.2:6379"))
    with pytest.raises(ClusterError, match=r"several Ray clusters \(10.0.0.1:6379, 10.0.0.2:6379\)"):
        endpoint("auto", "RAY_ADDRESS")
    running[:] = others
    with pytest.raises(ClusterError, match="RAY_ADDRESS is auto, but this machine belongs to no Ray cluster"):
        endpoint("auto", "RAY_ADDRESS")
