"""Lets functions on any node of a cluster read and write the files of a stage, if the storage root is a bucket.

The driver's node is called the home node. The driver starts an actor there, `HomeActor`, which reads and writes the
files. `HomeActor` starts an actor `NodeCopies` on each other node that runs a function of the job. `NodeCopies` holds
copies of stages' folders (`adapt.runner.folder_copy`). All functions that the job sends to other processes are wrapped
in `OnNode`, or call `on_node`. `OnNode` and `on_node` copy no files on the home node, on a node that shares the home
node's folder, or if the storage root is not a bucket.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from adapt.ray.connection import OWN_RAY, ray_library
from adapt.runner.claim import stage_at_work
from adapt.runner.folder_copy import FolderCopy, HomeFiles, Terms, give_folder
from adapt.runner.mirror import mirror_at, mirrors_in_use
from adapt.support.errors import StorageError

R = TypeVar("R")
_THREADS = 32
"""Number of calls that an actor answers at the same time."""
_PERIOD_S, _SHARE = 1.0, 0.1
"""Minimum time between two exchanges of files between nodes [s], and maximum share of time spent on exchanges."""


class HomeActor(HomeFiles):
    """The actor that reads and writes files on the driver's node."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._nodes: dict[str, Any] = {}
        self._lock = threading.Lock()

    def mark(self) -> str:
        """Returns a text that identifies the folder `root`; see `adapt.runner.mirror.Mirror.mark`."""
        mirror = mirror_at(self._root)
        assert mirror
        return mirror.mark

    def call(self, function: Callable[..., R], arguments: tuple[Any, ...]) -> R:
        """Calls a function on the driver's node."""
        return function(*arguments)

    def node(self, node: str, home: Any) -> Any:
        """Returns the actor `NodeCopies` of a node. Starts the actor if needed."""
        ray = ray_library()
        with self._lock:
            if node not in self._nodes:
                self._nodes[node] = ray.remote(**file_actor_options(node))(NodeCopies).remote(self._root, home)
            return self._nodes[node]


class _Distant:
    """Gives other nodes access to the files on the home node. See `adapt.runner.folder_copy.Home`."""

    def __init__(self, home: Any) -> None:
        self._home = home

    def __getattr__(self, name: str) -> Callable[..., Any]:
        ray = ray_library()
        return lambda *arguments: ray.get(getattr(self._home, name).remote(*arguments))


class NodeCopies:
    """The actor that holds copies of stages' folders on a node other than the driver's node (the home node)."""

    def __init__(self, root: Path, home: Any) -> None:
        self._root = root
        self._home: Any = _Distant(home)
        self._copies: dict[str, FolderCopy] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._meet, daemon=True).start()

    def arrive(self, folder: str, fetches: bool, leaves: Sequence[str]) -> None:
        """Copies to this node the inputs of a stage and, if `fetches` is True, the files that the stage has written."""
        copy = self._copy(folder)
        copy.begin()
        if fetches:
            copy.fetch(leaves=leaves)

    def fetch(self, folder: str, beginning: str) -> None:
        """Copies from the home node the files of a stage whose paths start with `beginning`."""
        self._begun(folder).fetch((beginning,))

    def send(self, folder: str) -> None:
        """Sends the files of a stage that were written on this node to the home node."""
        self._begun(folder).send()

    def _begun(self, folder: str) -> FolderCopy:
        """Returns the copy of a stage's folder.

        Raises:
            RuntimeError: Ray restarted this actor after the caller's files were copied. The new actor does not know
                which files were written on this node, so the caller must start again.
        """
        copy = self._copy(folder)
        if not copy.is_ready:
            raise RuntimeError(f"the process that copies the files of {folder} to this node ended and was restarted")
        return copy

    def _copy(self, folder: str) -> FolderCopy:
        terms: Terms | None = self._home.terms(folder)
        with self._lock:
            known = self._copies.get(folder)
            if terms is None:
                raise StorageError(
                    f"the files of the stage {folder} cannot be copied, because the stage has ended on the node where"
                    " the job runs",
                    "run the same command again",
                )
            if known is None or known.terms.attempt != terms.attempt:
                if known:
                    known.end()
                self._copies[folder] = FolderCopy(self._root, folder, self._home, terms)
            return self._copies[folder]

    def _meet(self) -> None:
        """Exchanges small files with the home node while stages run, and drops the copies of stages that have ended."""
        pause = _PERIOD_S
        while True:
            time.sleep(pause)
            began = time.monotonic()
            with self._lock:
                copies = list(self._copies.items())
            for folder, copy in copies:
                with suppress(Exception):  # the next exchange may succeed; if not, `send` raises the error
                    terms = self._home.terms(folder)
                    if terms and terms.attempt == copy.terms.attempt:
                        if copy.is_ready:
                            copy.meet()
                    else:
                        with self._lock:
                            copy.end()
                            if self._copies.get(folder) is copy:
                                del self._copies[folder]
            pause = max(_PERIOD_S, (time.monotonic() - began) * (1 / _SHARE - 1))


@dataclass(frozen=True)
class _Link:
    """The two actors through which a process on a node other than the home node exchanges files."""

    home: Any
    copies: Any
    """The actor `NodeCopies` of this node."""


_links: dict[tuple[Path, str], _Link | None] = {}
"""Actors that this process uses, keyed by storage root and Ray job. None if this node needs no copies of files."""
_homes: dict[tuple[Path, str], Any] = {}
"""Actors of class `HomeActor` that this process has started. They end when the process ends."""
_serving = threading.Lock()


def serve_files() -> None:
    """Starts the actors that serve the files of this process's node to other nodes. The driver calls this function.

    Does nothing if this process uses no bucket, or uses a Ray instance that we started on this machine.
    """
    if OWN_RAY in os.environ or not mirrors_in_use():
        return
    ray = ray_library()
    context = ray.get_runtime_context()
    for mirror in mirrors_in_use():
        place = mirror.root, context.get_job_id()
        with _serving:
            if place not in _homes:
                start: Any = ray.remote(**file_actor_options(context.get_node_id()))(HomeActor)
                _homes[place] = start.options(name=_name(mirror.root)).remote(mirror.root)
                _links[place] = None


def file_actor_options(node: str) -> dict[str, Any]:
    """Returns the options of an actor that reserves no cores, answers many calls at once, and restarts if killed."""
    return {"num_cpus": 0, "max_concurrency": _THREADS, "max_restarts": -1, **_pinned(node)}


def _pinned(node: str) -> dict[str, Any]:
    strategies = ray_library().util.scheduling_strategies
    return {"scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node, soft=False)}


def _name(root: Path) -> str:
    ray = ray_library()
    return f"dontstop-files-{ray.get_runtime_context().get_job_id()}-{sha256(str(root).encode()).hexdigest()[:12]}"


def _link(folder: Path) -> _Link | None:
    """Returns the actors that exchange files of a stage's folder. Returns None if this node needs no copies."""
    ray: Any = sys.modules.get("ray")
    mirror = mirror_at(folder)
    if mirror is None or ray is None or OWN_RAY in os.environ or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    place = mirror.root, context.get_job_id()
    if place not in _links:
        try:
            home = ray.get_actor(_name(mirror.root))
        except ValueError:  # there is no such actor, because the driver serves no files
            return None
        if ray.get(home.mark.remote()) == mirror.mark:
            _links[place] = None
        else:
            _links[place] = _Link(home, ray.get(home.node.remote(context.get_node_id(), home)))
    return _links[place]


def _stage(folder: Path) -> Path:
    """Returns the folder of the stage that a folder belongs to. The folder may itself be the stage's folder."""
    mirror = mirror_at(folder)
    assert mirror
    return mirror.root.joinpath(*folder.relative_to(mirror.root).parts[:2])


def _inner(folder: Path) -> str:
    """Returns the path of the stage that contains a folder, relative to the storage root."""
    stage = _stage(folder)
    return f"{stage.parent.name}/{stage.name}"


@contextmanager
def on_node(folder: Path | None, fetches: bool = True, leaves: Sequence[str] = ()) -> Iterator[None]:
    """Copies a stage's files to this node before the block, and sends new files to the home node after the block.

    Args:
        folder: folder of the stage, or a folder in it; None for no stage.
        fetches: whether the block reads files that the stage itself has written.
        leaves: prefixes of file names. Files of the stage with these prefixes are not copied, because the block does
            not read them.

    Raises:
        StageError: a file of an input is missing or has changed.
        StorageError: files cannot be copied.
    """
    link = _link(folder) if folder else None
    if folder is None or link is None:
        yield
        return
    ray = ray_library()
    ray.get(link.copies.arrive.remote(_inner(folder), fetches, tuple(leaves)))
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the error of the block matters more, and is raised below
            ray.get(link.copies.send.remote(_inner(folder)))
        raise
    ray.get(link.copies.send.remote(_inner(folder)))


@dataclass(frozen=True)
class OnNode:
    """A function that other processes of the cluster call. Before each call, files are copied to their node.

    Args:
        function: function that returns a result, or an iterator of results.
        fetches: whether the function reads files that the stage itself has written; see `on_node`.
        folder: folder of the stage. The default is the stage that this thread works on.
    """

    function: Callable[..., Any]
    fetches: bool = True
    folder: Path | None = field(default_factory=stage_at_work)

    def __call__(self, *arguments: Any) -> Any:
        """Copies the stage's files to this node, calls the function, and sends new files to the home node."""
        with on_node(self.folder, self.fetches):
            result = self.function(*arguments)
        return self._each(result) if isinstance(result, Iterator) else result

    def _each(self, results: Iterator[Any]) -> Iterator[Any]:
        while True:
            with on_node(self.folder, fetches=False):
                try:
                    result = next(results)
                except StopIteration:
                    return
            yield result


def call(function: Callable[..., R], *arguments: Any) -> R:
    """Calls a function. Ray's tasks run `call`, because Ray refuses objects such as `OnNode` as tasks."""
    return function(*arguments)


def at_home(folder: Path, function: Callable[..., R], *arguments: Any) -> R:
    """Calls a module-level function on the home node, where the folder of the stage is complete."""
    link = _link(folder)
    if link is None:
        return function(*arguments)
    ray = ray_library()
    result: R = ray.get(link.home.call.remote(function, arguments))
    return result


def fetch_part(part: Path) -> None:
    """Copies a subfolder of a stage's folder from the home node. Removes local files that the home node removed."""
    if link := _link(part):
        ray = ray_library()
        ray.get(link.copies.fetch.remote(_inner(part), f"{part.relative_to(_stage(part)).as_posix()}/"))


def send_now(folder: Path) -> None:
    """Sends the files of a stage that were written on this node to the home node.

    Args:
        folder: folder of the stage, or a folder in it.
    """
    if link := _link(folder):
        ray = ray_library()
        ray.get(link.copies.send.remote(_inner(folder)))


def storing(target: Path) -> Callable[[Any, str], Any] | None:
    """Returns a function for Ray Train's `checkpoint_upload_fn` that stores checkpoints on the home node.

    Args:
        target: folder for the checkpoints, in the folder of a stage.

    Returns:
        The function. None if Ray Train can copy the files itself.
    """
    link, mirror = _link(target), mirror_at(target)
    if link is None or mirror is None:
        return None

    def store(checkpoint: Any, name: str) -> Any:
        ray = ray_library()
        # Sends the metrics before the checkpoint. Otherwise, a loss of this node could lose metrics of finished steps.
        ray.get(link.copies.send.remote(_inner(target)))
        distant: Any = _Distant(link.home)
        give_folder(distant, Path(checkpoint.path), (target / name).relative_to(mirror.root).as_posix())
        return type(checkpoint).from_directory(target / name)

    return store


def pinned_home(folder: Path) -> dict[str, Any]:
    """Returns the options of an actor that must run on the home node, because it writes files of the stage."""
    return _pinned(at_home(folder, _node_id)) if mirror_at(folder) else {}


def pinned_here(folder: Path) -> dict[str, Any]:
    """Returns the options of a task that must run on this node, because it reads files that were copied to this node.

    Args:
        folder: folder of the stage, or of one of its inputs.
    """
    return _pinned(_node_id()) if mirror_at(folder) else {}


def _node_id() -> str:
    ray = ray_library()
    return str(ray.get_runtime_context().get_node_id())
