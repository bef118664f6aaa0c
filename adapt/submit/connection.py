"""The client of a cluster's jobs, once the cluster answers, lets us in and has our version of Ray."""

import logging
import os
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from adapt.errors import ClusterError
from adapt.ray.runtime import hush
from adapt.redact import has_password

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

ADDRESS = "RAY_API_SERVER_ADDRESS"
"""The variable that names a cluster's dashboard, as for `ray job`."""
_PATIENCE_S = 5.0


def address_from(given: str | None) -> str:
    """The address of the dashboard that takes jobs: what is given, else what the environment says.

    Raises:
        ClusterError: there is none, or it is no address of a dashboard.
    """
    ray_address = os.environ.get("RAY_ADDRESS", "")
    address = given or os.environ.get(ADDRESS) or (ray_address if "://" in ray_address else "")
    how = "give the dashboard's, such as --address http://127.0.0.1:8265"
    if not address:
        raise ClusterError("no cluster is named", f"{how}, or set {ADDRESS}; `ray dashboard FILE` opens a tunnel to it")
    if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
        raise ClusterError(f"{address} is not the address of a cluster's dashboard", how)
    if has_password(address):
        raise ClusterError("the address holds a password, which process lists show", f"leave it out: {_TOKEN}")
    return address.rstrip("/")


_TOKEN = "export RAY_AUTH_MODE=token, and put the cluster's token into ~/.ray/auth_token (or RAY_AUTH_TOKEN_PATH)"


def connected(address: str) -> "JobSubmissionClient":
    """A client for the jobs of the cluster at an address.

    Raises:
        ClusterError: nobody answers, the token is missing or wrong, or the versions of Ray differ.
    """
    _check_answers(address)
    import ray
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    hush()
    for name in ("dashboard_sdk", "job.sdk"):  # they tell of each package and each end of a log
        logging.getLogger(f"ray.dashboard.modules.{name}").setLevel(logging.WARNING)
    logging.getLogger("ray._private.runtime_env.packaging").setLevel(logging.WARNING)
    try:
        client = JobSubmissionClient(address)
        there = client._do_request("GET", "/api/version").json()["ray_version"]  # get_version has the API's alone
    except AuthenticationError as error:
        raise ClusterError(f"the cluster at {address} does not let us in: {_first(error)}", _TOKEN) from error
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        what = f"what answers at {address} is no Ray dashboard: {_first(error)}"
        raise ClusterError(what, "name the address of the cluster's dashboard, usually port 8265") from error
    if there != ray.__version__:
        raise ClusterError(
            f"Ray is {ray.__version__} here and {there} on the cluster",
            f"use one version on both sides: pip install 'ray[default]=={there}' here, or renew the cluster's image",
        )
    return client


def _check_answers(address: str) -> None:
    """Ray's own client waits without end for a host that is not there."""
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout=_PATIENCE_S).close()
    except OSError as error:
        raise ClusterError(
            f"no cluster answers at {address}: {error}",
            "see that it runs and that the tunnel to its dashboard is open (`ray dashboard`), or correct --address",
        ) from error


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
