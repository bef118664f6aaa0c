"""Compares the installed versions of Ray, DeepSpeed and transformers with the versions tested with dontstop."""

import importlib.metadata
from collections.abc import Iterable

TRIED = {"ray": "2.60.0", "deepspeed": "0.19.8", "transformers": "5.23.0"}
"""Versions with which the tests passed. pyproject.toml allows versions with the same major and minor number."""
_NAMES = {"ray": "Ray", "deepspeed": "DeepSpeed"}


def untried(*packages: str) -> list[str]:
    """Returns a message for each installed package whose minor version differs from the tested minor version.

    Args:
        packages: packages to check. If none is named, all packages in TRIED are checked.
    """
    return [
        f"not tested with {named(package)} (tested: {_minor(TRIED[package])})" for package in _others(packages or TRIED)
    ]


def install_command() -> str:
    """Returns a command that installs the tested version of each package whose minor version differs."""
    return "pip install " + " ".join(f"{package}=={TRIED[package]}" for package in _others(TRIED))


def named(package: str) -> str:
    """Returns the name of a package with its installed version, such as "Ray 2.60.0"."""
    return f"{_NAMES.get(package, package)} {_installed(package) or '(not installed)'}"


def _others(packages: Iterable[str]) -> list[str]:
    """Returns the packages whose installed minor version differs from the tested minor version."""
    return [
        package
        for package in packages
        if package in TRIED and (version := _installed(package)) and _minor(version) != _minor(TRIED[package])
    ]


def _minor(version: str) -> str:
    """Returns the major and minor number of a version: 2.60 for 2.60.1."""
    return ".".join(version.split(".")[:2])


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
