"""A stage's identity: the hash of what determines its result, and nothing else.

Versions of packages are part of it where they decide the result. Most do not: they calculate what was asked for, up
to rounding, in every version (torch, transformers, numpy), or they read and write formats. Those in DECIDING have
rules of their own, which another version may change. Whoever declares a stage or a cleaning block that uses one puts
`deciding(...)` into its `what`.
"""

import hashlib
import importlib.metadata
import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from adapt.support.errors import StageError
from adapt.support.versions import untried
from adapt.terminal.console import log


def canonical(value: Any, path: str = "what") -> str:
    """Canonical JSON: one text for one meaning. 1, 1.0 and true are three meanings; a list and a tuple are one.

    Args:
        value: plain JSON values.
        path: where the value stands, as messages name it.

    Raises:
        StageError: a value whose text is not stable (a set, an object, NaN, a key that is no string).
    """
    return json.dumps(_plain(value, path), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise StageError(f"{path} is {value}, which has no stable text", "use a finite number or null")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                raise StageError(f"{path} has the key {key!r}, which is no string", "use string keys")
        return {key: _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{number}]") for number, item in enumerate(value)]
    raise StageError(f"{path} is a {type(value).__name__}, which has no stable text", "use plain JSON values")


def stage_key(stage: str, version: int, what: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """SHA-256 (hexadecimal) over a stage's name, version, configuration and the keys of its inputs."""
    text = canonical({"stage": stage, "version": version, "what": what, "inputs": inputs}, stage)
    return hashlib.sha256(text.encode()).hexdigest()


def flatten(what: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested configuration as dotted fields, for comparing two of them."""
    flat: dict[str, Any] = {}
    for key, value in what.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The fields in which two configurations differ, as lines `training.learning_rate: 0.0005 -> 0.0001`."""
    before, after = flatten(old), flatten(new)
    return [
        f"{name}: {_short(before, name)} -> {_short(after, name)}"
        for name in sorted(before.keys() | after.keys())
        if (name in before) != (name in after) or canonical(before[name]) != canonical(after[name])
    ]


def _short(fields: Mapping[str, Any], name: str) -> str:
    if name not in fields:
        return "(not there)"
    value = fields[name]
    is_digest = isinstance(value, str) and len(value) == 64
    return f"{value[:8]}…" if is_digest else json.dumps(value)


RECORDED = ("dontstop", "torch", "transformers", "tokenizers", "deepspeed", "ray", "datasets", "pyarrow", "numpy")
"""Packages whose version every record names."""
DECIDING = {
    "ftfy": 3,  # its heuristics decide which characters are mended; 6.0.2 and 6.1.1 changed them
    "py3langid": 3,  # a language model in a package
    "rensa": 3,  # its hash functions decide which documents are near
    "tokenizers": 2,  # follow the files of a tokenizer; a patch release mends what it must
    "scikit-learn": 2,  # what a word is, who is a neighbour, when a regression has converged
    "faiss-cpu": 2,  # centres, codes and graphs
    "optuna": 2,  # what its samplers propose
    "peft": 2,  # where low-rank additions go, and how they begin
}
"""How many parts of the version number count: as many as have changed results before."""


def deciding(*packages: str) -> dict[str, dict[str, str]]:
    """For a stage's `what`: the versions of packages that decide its result, as far as they count; found unimported."""
    counted = {package: ".".join(_version(package).split(".")[: DECIDING[package]]) for package in packages}
    return {"packages": counted} if counted else {}


def ran_with() -> dict[str, str]:
    """For a record: the versions of all packages that may have done the work."""
    versions = {package: _version(package) for package in dict.fromkeys((*RECORDED, *DECIDING))}
    return {package: version for package, version in versions.items() if version}


@cache
def say_untried() -> None:
    """Logs the packages that dontstop was not tried with in the installed version, once in a process."""
    for line in untried():
        log(f"{line}; dontstop doctor says what to install")


@cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""  # run from a source tree, or an extra that is not installed; who needs it will say so
