"""Starts Ray for this process only: on this machine, in a private folder, and without a dashboard."""

import atexit
import fcntl
import logging
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil

from adapt.ray.guard import heeding_signals, watch_processes
from adapt.support.errors import ClusterError
from adapt.terminal.console import log

OWN_RAY = "DONTSTOP_OWN_RAY"
"""Environment variable of the processes of a Ray that we started.

Its value is a folder that only this user may enter.
"""
FOLDER_PREFIX = "dontstop-"
"""Prefix of the name of a folder for a Ray that we started."""
_NO_DASHBOARD = "http://127.0.0.1:1"
"""Address without a server.

Ray Train asks a dashboard whether its controller is alive. Without this address, Ray Train searches for a dashboard
for 40 s, which delays the end of a short training, or it asks another Ray on this machine.
"""
_RAYS = "r"
"""Name of Ray's folder inside our folder. Ray's folder is open to every user, but ours is not."""
_SOCKET = f"/{_RAYS}/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
"""Longest path of a socket below our folder."""
_LONGEST_PATH = 103
"""Largest length of a socket's path [bytes]. The limit is 107 on Linux and 103 on macOS."""
_ATTEMPTS = 3
_SLOW_S = 15.0
"""Shortest duration of a failed start that is repeated [s]. A faster failure is not caused by a busy machine."""
_FIX = "look into its logs below {}; free memory and cores, and space in TMPDIR, and run it again"
_REMOVALS = 20
_LOCK = "lock"
"""File in the folder. It is locked as long as the process that started Ray is alive."""
_OLD_S = 24 * 3600.0
"""Age at which the folder of a killed process is removed [s]. Until then, its logs can be read."""


def start_ray() -> None:
    """Starts Ray and connects to it. When this process ends, Ray ends and its folder is removed.

    On a busy machine, Ray may time out while it waits for its own processes. Ray is then started again.

    Raises:
        ClusterError: Ray did not start, or no folder for Ray can be written.
    """
    for attempt in range(_ATTEMPTS):
        folder, began = private_folder(), time.monotonic()
        try:
            _start(folder)
        except Exception as error:
            lasted, reason = time.monotonic() - began, " ".join(str(error).split()) or type(error).__name__
            _kill_processes(folder)
            if lasted < _SLOW_S or attempt == _ATTEMPTS - 1:
                raise ClusterError(
                    f"Ray did not start on this machine within {lasted:.0f} s: {reason}",
                    _FIX.format(folder),
                ) from error
            remove(folder)
            log(f"Ray did not start within {lasted:.0f} s ({reason}); starting it again")
        else:
            watch_processes(folder, folder / _RAYS / "session_latest" / "logs")
            return


def _start(folder: Path) -> None:
    import ray

    os.environ[OWN_RAY] = str(folder)
    if os.path.expanduser("~") == "~":  # sets HOME for users without a home folder, because Ray Train needs it
        os.environ["HOME"] = str(folder)
    # Chooses the port here, because Ray would wait for its own choice of a port without handling signals. Unsets
    # RAY_AUTH_MODE, because `ray.init` then turns on token authentication, even if Ray was imported earlier.
    settings = {
        "RAY_AUTH_TOKEN": _token(),
        "RAY_AUTH_MODE": None,
        "RAY_GCS_SERVER_PORT": str(_free_port()),
        "RAY_API_SERVER_ADDRESS": _NO_DASHBOARD,
    }
    # At exit, `ray.shutdown` runs before `remove`. Without the call registered here, Ray's own handler would shut Ray
    # down later, and would wait 0.5 s for output that nobody reads.
    atexit.register(remove, folder)
    atexit.register(ray.shutdown)
    with (
        _environment(settings),
        heeding_signals("starting Ray on this machine", _FIX.format(folder)),
    ):
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(folder / _RAYS),
        )


@contextmanager
def _environment(settings: Mapping[str, str | None]) -> Iterator[None]:
    """Sets or unsets environment variables inside the block."""
    before = {name: os.environ.get(name) for name in settings}
    try:
        _set(settings)
        yield
    finally:
        _set(before)


def _set(settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def private_folder() -> Path:
    """Creates a folder that only this user may enter, for the sockets, logs and spilled objects of one Ray.

    The folder is in RAY_TMPDIR or in the usual temporary folder (TMPDIR). If their paths are too long for sockets or
    not ASCII, the folder is in /tmp, /var/tmp, XDG_RUNTIME_DIR or /dev/shm instead.

    Raises:
        ClusterError: none of these folders can be used.
    """
    refused: list[str] = []
    for parent in _parents():
        if not parent.isascii() or len(parent) + len(f"/{FOLDER_PREFIX}12345678{_SOCKET}") > _LONGEST_PATH:
            refused.append(f"the path {parent} is too long for sockets, or is not ASCII")
            continue
        try:
            folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
        except OSError as error:
            refused.append(f"{parent}: {error.strerror}")
            continue
        _lock(folder / _LOCK)
        _remove_old(Path(parent))
        return folder
    raise ClusterError(
        f"Ray has no folder for its sockets and logs ({'; '.join(refused)})",
        "set TMPDIR to a folder that you may write to, with a path of at most 21 letters, such as /tmp",
    )


def _lock(file: Path) -> bool:
    """Locks a file as long as this process is alive. Returns False if another process has locked the file."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    return True


def _remove_old(parent: Path) -> None:
    """Removes this user's folders of processes that ended at least a day ago without removing their folder."""
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):
            file, about = folder / _LOCK, folder.stat()
            if about.st_uid == os.getuid() and time.time() - about.st_mtime > _OLD_S and file.exists() and _lock(file):
                remove(folder)


def _parents() -> list[str]:
    found = [os.environ.get("RAY_TMPDIR", "")]
    with suppress(FileNotFoundError):  # raised if no temporary folder can be written
        found.append(tempfile.gettempdir())
    found += ["/tmp", "/var/tmp", os.environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm"]
    return list(dict.fromkeys(filter(None, found)))


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@cache
def _token() -> str:
    """Returns the token of this process's Ray. It is only stored in the environment of Ray's processes."""
    return secrets.token_hex(32)


def _kill_processes(folder: Path) -> None:
    """Kills all processes of a Ray that did not start."""
    for process in psutil.process_iter(["cmdline"]):
        if str(folder) in " ".join(process.info["cmdline"] or ()):
            with suppress(psutil.Error):
                process.kill()


def remove(folder: Path) -> None:
    """Removes the folder of a Ray instance that has ended.

    Repeats the removal while the instance's last processes still write to the folder.
    """
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
