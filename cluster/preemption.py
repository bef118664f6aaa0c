"""Tells Ray that a cloud or Kubernetes is about to terminate this node, so that training runs save a checkpoint.

python cluster/preemption.py watch                asks the cloud's metadata server until it announces a termination
python cluster/preemption.py stop --seconds 110   announces the termination, and waits while the node trains (preStop)

This script runs on a node and needs only Python, Ray and this file.
"""

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

METADATA = "http://169.254.169.254"
"""Link-local address of the metadata server on machines of AWS, Google Cloud and Azure."""
LOOK_S = 5.0
"""Time between two requests [s]. Google Cloud and Azure announce a termination 30 s in advance, AWS 2 min."""
GOOGLE_S = AZURE_S = 30
"""Assumed time until the node is terminated [s], if the answer contains no time."""
TRAINS = b"ray::RayTrainWorker"
"""Beginning of the title of a training process."""
POD_DELETED = "Kubernetes: the pod is being deleted"
_ANSWER_S = 5.0
_TRIES = 6
_DIRECT = build_opener(ProxyHandler({}))  # uses no proxy, because a proxy would answer for another machine


@dataclass(frozen=True)
class Notice:
    """The announced termination of a node."""

    seconds: int
    """Time until the node is terminated [s]."""
    why: str


Ask = Callable[[str], "Notice | None"]
"""Function that asks the metadata server at an address for a notice.

It raises OSError if the server does not answer.
"""


def aws(metadata: str) -> Notice | None:
    """Asks AWS (IMDSv2) whether this spot instance is about to be interrupted."""
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = {"X-aws-ec2-metadata-token": _answer(f"{metadata}/latest/api/token", lifetime, "PUT") or ""}
    if not token["X-aws-ec2-metadata-token"]:
        raise OSError("the server returned no token")
    content = _answer(f"{metadata}/latest/meta-data/spot/instance-action", token)
    if content is None:
        return None
    told = json.loads(content)
    end = datetime.fromisoformat(told["time"].replace("Z", "+00:00"))
    return Notice(_seconds_until(end), f"AWS: spot instance-action {told['action']}")


def google(metadata: str) -> Notice | None:
    """Asks Google Cloud whether this instance is being preempted."""
    content = _answer(f"{metadata}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    if content is None or content.strip() not in ("TRUE", "FALSE"):
        raise OSError("the answer does not come from a metadata server of Google Cloud")
    return Notice(GOOGLE_S, "Google Cloud: preempted") if content.strip() == "TRUE" else None


def azure(metadata: str) -> Notice | None:
    """Asks Azure whether this machine is about to be evicted or terminated by another scheduled event."""
    own = {"Metadata": "true"}
    name = _answer(f"{metadata}/metadata/instance/compute/name?api-version=2021-02-01&format=text", own)
    content = _answer(f"{metadata}/metadata/scheduledevents?api-version=2020-07-01", own)
    if name is None or content is None:
        raise OSError("the answer does not come from a metadata server of Azure")
    for event in json.loads(content)["Events"]:  # the list includes events of other machines of the scale set
        if event["EventType"] in ("Preempt", "Terminate", "Reboot", "Redeploy") and name in event["Resources"]:
            begins = event.get("NotBefore")  # the time is empty if the event has begun
            seconds = _seconds_until(parsedate_to_datetime(begins)) if begins else AZURE_S
            return Notice(seconds, f"Azure: scheduled event {event['EventType']}")
    return None


CLOUDS: Mapping[str, Ask] = {"aws": aws, "google": google, "azure": azure}


def _answer(url: str, headers: Mapping[str, str], method: str = "GET") -> str | None:
    """Returns the metadata server's answer for a URL. Returns None if the server has nothing at this URL."""
    try:
        with _DIRECT.open(Request(url, headers=dict(headers), method=method), timeout=_ANSWER_S) as answer:
            content: str = answer.read().decode()
            return content
    except HTTPError as error:
        if error.code in (400, 403, 404, 405):
            return None
        raise


def _seconds_until(end: datetime) -> int:
    return max(0, int((end - datetime.now(UTC)).total_seconds()))


def cloud_here(metadata: str) -> tuple[str, Ask] | None:
    """Returns the name of the cloud whose metadata server answers, and the function that asks this server.

    Returns None if no server answers.
    """
    for name, ask in CLOUDS.items():
        try:
            ask(metadata)
        except (OSError, HTTPException, ValueError, KeyError):
            continue  # no metadata server answers, or another cloud's server does
        return name, ask
    return None


def watch(metadata: str, drain: Callable[[Notice], bool], look_s: float = LOOK_S) -> str:
    """Asks the metadata server repeatedly until it announces this node's termination. Passes the notice to Ray.

    Args:
        metadata: address of the metadata server.
        drain: function that passes a notice on and returns whether this succeeded. It is called again after a failure.
        look_s: time between two requests [s].

    Returns:
        Message that says what happened.
    """
    found = None
    for _ in range(_TRIES):  # several attempts, because the network may start late
        if found := cloud_here(metadata):
            break
        time.sleep(look_s)
    if found is None:
        return (
            "no metadata server of AWS, Google Cloud or Azure answers: this node is not in these clouds, or its pods"
            " cannot reach the server"
        )
    name, ask = found
    say_to_log(f"asking the metadata server of {name} every {look_s:g} s")
    while True:
        try:
            notice = ask(metadata)
        except (OSError, HTTPException, ValueError, KeyError) as error:
            say_to_log(f"the metadata server of {name} gave no usable answer: {error}")
            notice = None
        if notice and drain(notice):
            return f"{notice.why}: told Ray that this node will be terminated in {notice.seconds} s"
        time.sleep(look_s)


def stop(seconds: int, drain: Callable[[Notice], bool], trains: Callable[[], bool], why: str = POD_DELETED) -> str:
    """Announces this node's termination, and waits while training processes run on this node.

    Args:
        seconds: maximum time to wait [s], which is also the announced time until the termination.
        drain: function that passes a notice on and returns whether this succeeded.
        trains: function that returns whether training processes run on this node.
        why: reason for the termination, for Ray's messages.

    Returns:
        Message that says what happened.
    """
    end = time.monotonic() + seconds
    if not trains():
        return "no training runs on this node"
    while not drain(Notice(max(1, int(end - time.monotonic())), why)):
        if time.monotonic() > end:
            return "Ray could not be told that this node will be terminated"
        time.sleep(1)
    while trains() and time.monotonic() < end:
        time.sleep(1)
    return (
        "the time limit has passed, and training still runs on this node"
        if trains()
        else "no training runs on this node any more"
    )


def is_training() -> bool:
    """Returns whether a training process runs on this node.

    `stop` does not wait on a node without a training process, such as an idle node that the autoscaler removes.
    """
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if file.read_bytes().startswith(TRAINS):
                return True
        except OSError:  # the process has just ended
            continue
    return False


def drain_by_ray(notice: Notice, node: str | None = None, address: str | None = None) -> bool:
    """Tells Ray with `ray drain-node` that a node is about to be terminated. Returns whether this succeeded.

    Args:
        notice: announced termination of the node.
        node: Ray's id of the node. None for the node of this process.
        address: address of the Ray cluster. None for the cluster of this machine.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    command += ["--reason-message", notice.why, "--deadline-remaining-seconds", str(notice.seconds)]
    command += ["--node-id", node] if node else []
    command += ["--address", address] if address else []
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        say_to_log(f"ray drain-node failed: {' '.join((done.stderr or done.stdout).split())[-300:]}")
    return done.returncode == 0


def say_to_log(message: str) -> None:
    print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {message}", file=sys.stderr, flush=True)


def main() -> None:
    """Reads the command line and runs its command."""
    parser = argparse.ArgumentParser(prog="cluster/preemption.py", description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=("watch", "stop"))
    parser.add_argument("--seconds", type=int, default=110, help="for stop: seconds until this node is killed")
    parser.add_argument(
        "--why", default=POD_DELETED, help="for stop: reason, for Ray's messages (default: %(default)s)"
    )
    parser.add_argument("--metadata", default=METADATA, help="for watch: address of the metadata server")
    parser.add_argument("--node-id", help="Ray's id of the node (default: this node)")
    parser.add_argument("--address", help="address of the Ray cluster (default: the cluster of this machine)")
    given = parser.parse_args()

    def drain(notice: Notice) -> bool:
        return drain_by_ray(notice, given.node_id, given.address)

    if given.verb == "stop":
        say_to_log(stop(given.seconds, drain, is_training, given.why))
        return
    with (Path(tempfile.gettempdir()) / f"dontstop-preemption-{os.getuid()}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # an earlier setup of this node has started a `watch` process
            say_to_log("another process already watches this node")
            return
        say_to_log(watch(given.metadata, drain))


if __name__ == "__main__":
    main()
