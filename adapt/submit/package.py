"""Determines the files and the environment that a cluster job gets, and checks the files' size against Ray's limit."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from adapt.ray.private import files_sent
from adapt.support.errors import ConfigError
from adapt.support.redact import names_secret, redact

MOST_BYTES = 100_000_000
"""Largest size of the working directory [bytes]. Ray refuses packages above 100 MiB, but only after packing them."""
STOP_WAIT_S = 60
"""Time that a stopped job has to end by itself [s]. Ray's default is 3 s."""


def working_directory() -> Path:
    """Returns the current folder, which is sent to the cluster.

    Raises:
        ConfigError: the current folder is not the project's folder.
    """
    here = Path.cwd().resolve()
    if not (here / "jobs" / "chain.py").is_file() or not (here / "cluster" / "runtime_env.yaml").is_file():
        raise ConfigError(
            f"{here} is not the project's folder, which is sent to the cluster", "cd to it, and try again"
        )
    return here


def runtime_environment(root: Path) -> dict[str, Any]:
    """Returns the runtime environment of a job: `cluster/runtime_env.yaml` and the path of the working directory.

    Raises:
        ConfigError: the file sets a variable that holds a secret, which Ray would show in its lists of jobs.
    """
    content: dict[str, Any] = yaml.safe_load((root / "cluster" / "runtime_env.yaml").read_text())
    for name, value in content.get("env_vars", {}).items():
        if names_secret(name) or redact(str(value)) != str(value):
            raise ConfigError(
                f"cluster/runtime_env.yaml sets {name}, which holds a secret, and job lists show a job's variables",
                "leave it out; give credentials to the nodes by their environment (docs/guide/clusters.md)",
            )
    stop = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}
    return {**content, "working_dir": str(root), "env_vars": {**content.get("env_vars", {}), **stop}}


def check_size(environment: dict[str, Any], most: int = MOST_BYTES) -> int:
    """Checks the size of the files that would be sent.

    Files that `.rayignore`, `.gitignore` or the field `excludes` leave out do not count.

    Returns:
        Size of the files before compression [bytes].

    Raises:
        ConfigError: the files are too large. The message names the largest folders.
    """
    root = Path(environment["working_dir"])
    sizes: Counter[str] = Counter()
    for path in files_sent(root, environment.get("excludes", ())):
        parts = path.relative_to(root).parts
        sizes["/".join(parts[:2]) if len(parts) > 1 else parts[0]] += path.stat().st_size
    total = sum(sizes.values())
    if total > most:
        largest = ", ".join(f"{name} ({size / 1e6:,.0f} MB)" for name, size in sizes.most_common(3))
        raise ConfigError(
            f"the working directory {root} has {total / 1e6:,.0f} MB, and at most {most / 1e6:,.0f} can be sent to a"
            f" cluster; the largest: {largest}",
            f"list files that jobs do not need in {root / '.rayignore'}, one per line; text and results belong on the"
            " cluster's own storage",
        )
    return total


def inside(arguments: Sequence[str], root: Path) -> list[str]:
    """Rewrites the paths of YAML files in arguments, so that they are relative to the working directory.

    Raises:
        ConfigError: a YAML file is outside of the working directory.
    """
    return [_inside(argument, root) for argument in arguments]


def _inside(argument: str, root: Path) -> str:
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    path = Path(value).expanduser()
    if not value.endswith((".yaml", ".yml")) or not path.is_file():
        return argument
    if not path.resolve().is_relative_to(root):
        what = f"{value} is outside of the working directory {root}, which is sent to the cluster"
        raise ConfigError(what, "move it there, for example next to jobs/recipes")
    return f"{option}{equals}{path.resolve().relative_to(root)}"


def check_no_secrets(arguments: Sequence[str]) -> None:
    """Refuses passwords and signatures in arguments, because the cluster's lists of jobs show command lines.

    Raises:
        ConfigError: an argument contains a secret. The message shows the argument without the secret.
    """
    for argument in arguments:
        if redact(argument) != argument:
            raise ConfigError(
                f"{redact(argument)} holds a password or a signature, and job lists show the command line",
                "leave it out; give credentials to the nodes by their environment (docs/guide/clusters.md)",
            )
