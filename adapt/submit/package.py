"""What goes to a cluster with a job: the working directory, held to Ray's limit before it is sent."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from adapt.support.errors import ConfigError
from adapt.support.redact import names_secret, redact

MOST_BYTES = 100_000_000
"""The largest working directory. Ray refuses a package of more than 100 MiB, after it has been made."""
STOP_WAIT_S = 60
"""What a stopped job has to end by itself [s]; Ray gives 3."""


def working_directory() -> Path:
    """The folder that goes to the cluster: where the command is given, which must be the project's.

    Raises:
        ConfigError: it is not.
    """
    here = Path.cwd().resolve()
    if not (here / "jobs" / "chain.py").is_file() or not (here / "cluster" / "runtime_env.yaml").is_file():
        raise ConfigError(f"{here} is not the project's folder, which goes to the cluster", "cd to it, and try again")
    return here


def runtime_environment(root: Path) -> dict[str, Any]:
    """What Ray is told of a job's surroundings: `cluster/runtime_env.yaml`, with the working directory by its path.

    Raises:
        ConfigError: the file sets a variable that holds a secret: Ray shows a job's variables to whoever sees its jobs.
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
    """Adds up what would be sent, but for what `.rayignore`, `.gitignore` and `excludes` name.

    Returns:
        Its bytes, before they are compressed.

    Raises:
        ConfigError: it is too much; names what is largest.
    """
    from adapt.ray.private import files_sent

    root = Path(environment["working_dir"])
    sizes: Counter[str] = Counter()
    for path in files_sent(root, environment.get("excludes", ())):
        parts = path.relative_to(root).parts
        sizes["/".join(parts[:2]) if len(parts) > 1 else parts[0]] += path.stat().st_size
    total = sum(sizes.values())
    if total > most:
        largest = ", ".join(f"{name} ({size / 1e6:,.0f} MB)" for name, size in sizes.most_common(3))
        raise ConfigError(
            f"the working directory {root} has {total / 1e6:,.0f} MB, and {most / 1e6:,.0f} go to a cluster at most;"
            f" the largest: {largest}",
            f"name what jobs do not need in {root / '.rayignore'}, a line each; text and results lie on the cluster's"
            " own storage",
        )
    return total


def inside(arguments: Sequence[str], root: Path) -> list[str]:
    """Arguments as they hold in the copy of the working directory: files that are there now, by their place in it.

    Raises:
        ConfigError: a file of YAML lies outside.
    """
    return [_inside(argument, root) for argument in arguments]


def _inside(argument: str, root: Path) -> str:
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    path = Path(value).expanduser()
    if not value.endswith((".yaml", ".yml")) or not path.is_file():
        return argument
    if not path.resolve().is_relative_to(root):
        what = f"{value} lies outside of the working directory {root}, which is what goes to the cluster"
        raise ConfigError(what, "put it in there, such as beside jobs/recipes")
    return f"{option}{equals}{path.resolve().relative_to(root)}"


def check_no_secrets(arguments: Sequence[str]) -> None:
    """Refuses passwords and signatures on a command line: a cluster shows them to whoever sees its jobs.

    Raises:
        ConfigError: names the argument, without what is secret in it.
    """
    for argument in arguments:
        if redact(argument) != argument:
            raise ConfigError(
                f"{redact(argument)} holds a password or a signature, and job lists show the command line",
                "leave it out; give credentials to the nodes by their environment (docs/guide/clusters.md)",
            )
