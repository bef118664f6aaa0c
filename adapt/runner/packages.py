"""Which packages a stage ran with, and which of them decide what comes out.

Most do not: they calculate what was asked for, up to rounding, in every version (torch, transformers, numpy), or they
read and write formats. Those in DECIDING have rules of their own, which another version may change. Whoever declares a
stage or a cleaning block that uses one puts `deciding(...)` into its `what`.
"""

import importlib.metadata
from functools import cache

from adapt.console import log
from adapt.versions import untried

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
