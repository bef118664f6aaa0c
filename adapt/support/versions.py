"""The versions of Ray, DeepSpeed and transformers that dontstop was tried with, compared with the installed ones."""

import importlib.metadata
from collections.abc import Iterable

TRIED = {"ray": "2.60.0", "deepspeed": "0.19.8", "transformers": "5.23.0"}
"""The versions that the tests passed with. pyproject.toml allows those with the same major and minor number."""
_NAMES = {"ray": "Ray", "deepspeed": "DeepSpeed"}


def untried(*packages: str) -> list[str]:
    """One line for each package that is installed in another minor version than dontstop was tried with.

    Args:
        packages: which to look at; all of TRIED if none is named.
    """
    return [
        f"not tried with {named(package)} (tried: {_minor(TRIED[package])})" for package in _others(packages or TRIED)
    ]


def install_command() -> str:
    """The command that installs what was tried in place of what was not."""
    return "pip install " + " ".join(f"{package}=={TRIED[package]}" for package in _others(TRIED))


def named(package: str) -> str:
    """A package and its installed version, such as "Ray 2.60.0"."""
    return f"{_NAMES.get(package, package)} {_installed(package) or '(not installed)'}"


def _others(packages: Iterable[str]) -> list[str]:
    """The packages of which another minor version is installed."""
    return [
        package
        for package in packages
        if package in TRIED and (version := _installed(package)) and _minor(version) != _minor(TRIED[package])
    ]


def _minor(version: str) -> str:
    """The major and minor number of a version: 2.60 of 2.60.1."""
    return ".".join(version.split(".")[:2])


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
