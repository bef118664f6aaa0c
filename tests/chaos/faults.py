"""Defines the faults. Each fault is a function that disturbs a running chain once."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from tests.chaos.failing_store import VARIABLE as STORE
from tests.chaos.jumping_clock import VARIABLE as CLOCK
from tests.chaos.moment import Scene
from tests.chaos.work import EVERY, PATIENCE_S, STAGES, set_loopback, wait_for

Where = Literal["local", "apart", "disk", "joined", "submitted"]
"""How the chain runs: on this machine, in its own network namespace, on a small disk, connected to a cluster, or
submitted to it."""


@dataclass(frozen=True)
class Fault:
    """A kind of fault, the way in which the disturbed chain runs, and the function that causes the fault."""

    about: str
    """Description of the fault in the table of results."""
    where: Where
    happen: Callable[[Scene], None]


def _ranks(scene: Scene) -> list[psutil.Process]:
    return [each for each in scene.run.below() if "RayTrainWorker" in _title(each)]


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def stop_a_process(scene: Scene) -> None:
    """Stops a rank with SIGSTOP once it trains, so that the rank neither answers nor ends."""
    scene.until(lambda: scene.place.root.steps() > 0)
    if ranks := _ranks(scene):
        with suppress(psutil.NoSuchProcess):
            scene.draw.choice(ranks).send_signal(signal.SIGSTOP)


def cut_the_network(scene: Scene) -> None:
    """Cuts all connections between the processes for up to 20 s."""
    found = scene.run.below()
    if not found:
        return
    with suppress(subprocess.CalledProcessError):  # raised if the command has ended in the meantime
        set_loopback(found[0].pid, "down")
        time.sleep(scene.draw.uniform(1, 20))
        set_loopback(found[0].pid, "up")


def cut_the_network_for_long(scene: Scene) -> None:
    """Cuts all connections for 40 s, after which Ray's own processes have ended."""
    found = scene.run.below()
    if not found:
        return
    with suppress(subprocess.CalledProcessError):  # raised if the command has ended in the meantime
        set_loopback(found[0].pid, "down")
        time.sleep(40)
        set_loopback(found[0].pid, "up")


def fill_the_disk(scene: Scene) -> None:
    """Fills the disk until the command ends, or for 30 s."""
    filler = Path(scene.place.root.url).parent / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while file.write(b"\0" * size) == size:
                    pass
    wait_for(lambda: False, scene.run, 30)
    filler.unlink()


def fail_writes(scene: Scene) -> None:
    """Lets every third write of each process fail until the command ends, or for 20 s."""
    control = scene.place.environment[STORE]
    _write_at_once(control, scene.place.root.url)
    wait_for(lambda: False, scene.run, 20)
    Path(control).unlink()


def _flip(scene: Scene, kind: str, pattern: str) -> None:
    name = scene.place.root.flip(kind, pattern, scene.draw)
    assert name, f"there is no {pattern} of {kind}"
    scene.names_file = name


def flip_a_shard(scene: Scene) -> None:
    """Kills the command once the text is prepared, and changes one bit of a shard."""
    scene.until(lambda: any(stage.startswith("prepare/") for stage in scene.place.root.records()))
    scene.end_by_kill()
    # if the training run is finished, the shard is not changed, because possibly no later stage reads it
    if any(stage.startswith("train/") for stage in scene.place.root.records()):
        return
    _flip(scene, "prepare", "**/*.arrow")
    _obey_later(scene)


def flip_a_checkpoint(scene: Scene) -> None:
    """Kills the command once there are two checkpoints, and changes one bit of the newer checkpoint."""
    scene.until(lambda: scene.place.root.saved() > EVERY)
    scene.end_by_kill()
    if any(stage.startswith("train/") for stage in scene.place.root.records()):
        return
    newest = scene.place.root.saved()
    _flip(scene, "train", f"checkpoints/*/step-{newest:08d}/state/*")


def flip_a_model(scene: Scene) -> None:
    """Changes one bit of the exported model once the chain has ended, and then adds a stage that reads the model."""
    scene.until(lambda: False)
    _flip(scene, "export", "*.safetensors")  # also changes its hard link in the folder of the training run
    scene.expected_stages = STAGES + 1
    scene.start = lambda: scene.place.start(scene.chain.used)
    scene.run = scene.start()
    _obey_later(scene)


_ADVICE = re.compile(r"delete \S*/(\w+)/[^/\s]+/stage\.json")
"""Pattern of the advice that the error message about a changed file gives. The advice names the record to delete."""


def _obey_later(scene: Scene) -> None:
    """Adds a repair: before the next start, deletes the records that the command's messages say to delete."""

    def obey() -> None:
        for kind in _ADVICE.findall(scene.run.said()):
            scene.forgotten.add(kind)
            scene.place.root.forget(kind)
        scene.repairs.append(obey)

    scene.repairs.append(obey)


def race(scene: Scene) -> None:
    """Starts the same command a second time while the first command is running."""
    other = scene.start()
    scene.seen |= {each.pid: each for each in other.below()}
    wait_for(lambda: scene.run.poll() is not None and other.poll() is not None, other, PATIENCE_S)
    scene.seen |= {each.pid: each for each in other.below()}
    wait_for(lambda: other.poll() is not None, scene.run, PATIENCE_S)
    if other.poll() != 0:
        scene.outcome.wrong.append(f"the second command ended with {other.poll()}: {other.said()[-300:]}")
    done = sum(said.count(": done in ") for said in (scene.run.said(), other.said()))
    if done != STAGES:
        scene.outcome.wrong.append(f"{done} stages ran instead of {STAGES}")


def jump_the_clock(scene: Scene) -> None:
    """Moves the clock of our code by up to two days, forwards or backwards, for the rest of the chain."""
    _write_at_once(scene.place.environment[CLOCK], str(scene.draw.choice((-1, 1)) * scene.draw.randrange(60, 172_800)))


def _write_at_once(file: str, text: str) -> None:
    aside = Path(f"{file}.aside")
    aside.write_text(text)
    aside.rename(file)


def _kill(processes: list[psutil.Process], scene: Scene) -> None:
    if processes:
        with suppress(psutil.NoSuchProcess):
            scene.draw.choice(processes).kill()


def kill_a_worker(scene: Scene) -> None:
    """Kills a rank, or another worker of Ray if there is no rank."""
    _kill(scene.cluster.workers("RayTrainWorker") or scene.cluster.workers(), scene)


def kill_a_raylet(scene: Scene) -> None:
    """Kills the raylet of a node. The node's other processes end with it. Other nodes may join."""
    node = scene.draw.choice(scene.cluster.nodes)
    scene.cluster.raylet(node).kill()
    time.sleep(scene.draw.uniform(0, 5))
    scene.cluster.lose(node)
    scene.cluster.replace(scene.draw)


def kill_a_node(scene: Scene) -> None:
    """Kills all processes of a node at once. Other nodes may join."""
    scene.cluster.lose(scene.draw.choice(scene.cluster.nodes))
    scene.cluster.replace(scene.draw)


def kill_the_gcs(scene: Scene) -> None:
    """Kills the head's control store, and restarts the head with its state after up to 10 s."""
    scene.cluster.gcs().kill()
    scene.cluster.restart_head(scene.draw.uniform(0, 10))


def kill_the_head(scene: Scene) -> None:
    """Kills all processes of the head at once, and restarts it with its state after up to 10 s."""
    scene.cluster.restart_head(scene.draw.uniform(0, 10))


def kill_the_driver(scene: Scene) -> None:
    """Kills the process on the head that runs the submitted chain."""
    scene.until(lambda: bool(scene.cluster.drivers()))
    _kill(scene.cluster.drivers(), scene)


def kill_the_submitter(scene: Scene) -> None:
    """Kills the command that follows the submitted chain."""
    for process in scene.run.below():
        with suppress(psutil.NoSuchProcess):
            os.kill(process.pid, signal.SIGKILL)


FAULTS = {
    "stop": Fault("a rank is stopped (SIGSTOP)", "local", stop_a_process),
    "network": Fault("network cut for 1 to 20 s", "apart", cut_the_network),
    "outage": Fault("network cut for 40 s", "apart", cut_the_network_for_long),
    "disk": Fault("full disk", "disk", fill_the_disk),
    "store": Fault("every third write fails", "local", fail_writes),
    "shard": Fault("flipped bit in a shard", "local", flip_a_shard),
    "checkpoint": Fault("flipped bit in a checkpoint", "local", flip_a_checkpoint),
    "model": Fault("flipped bit in an exported model", "local", flip_a_model),
    "race": Fault("two chains race", "local", race),
    "clock": Fault("clock jumps by up to 2 days", "local", jump_the_clock),
    "worker": Fault("kill -9 of a worker", "joined", kill_a_worker),
    "raylet": Fault("kill -9 of a raylet", "joined", kill_a_raylet),
    "node": Fault("kill -9 of a whole node", "joined", kill_a_node),
    "gcs": Fault("kill -9 of the control store (GCS)", "joined", kill_the_gcs),
    "head": Fault("kill -9 of the head", "joined", kill_the_head),
    "driver": Fault("kill -9 of the driver", "submitted", kill_the_driver),
    "submitter": Fault("kill -9 of the submitter", "submitted", kill_the_submitter),
}
"""All faults, in the order in which they are tried."""
