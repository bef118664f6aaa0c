"""Computes a stage's key: the hash of everything that determines the stage's result, and of nothing else.

Versions of packages are part of the key only if they affect the result. Most versions do not: all versions of torch,
transformers and numpy compute the same up to rounding, and other packages read and write the same formats in all
versions. The packages in DECIDING have heuristics or algorithms that another version may change. A stage or cleaning
block that uses one of these packages must add `deciding(...)` to its `what`.
"""

import hashlib
import importlib.metadata
import json
import math
import re
from collections.abc import Mapping
from functools import cache
from itertools import takewhile
from typing import Any

from adapt.support.errors import StageError
from adapt.support.versions import untried
from adapt.terminal.console import log


def canonical(value: Any, path: str = "what") -> str:
    """Returns the canonical JSON of a value. Equal values have the same text.

    1, 1.0 and true are different values. A list and a tuple with the same elements are equal.

    Args:
        value: plain JSON values.
        path: name of the value, for messages.

    Raises:
        StageError: a value has no stable text (a set, an object, NaN, a key that is not a string).
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
                raise StageError(f"{path} has the key {key!r}, which is not a string", "use string keys")
        return {key: _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{number}]") for number, item in enumerate(value)]
    raise StageError(f"{path} is a {type(value).__name__}, which has no stable text", "use plain JSON values")


def stage_key(stage: str, version: int, what: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """Returns the SHA-256 (hexadecimal) of a stage's kind, version, configuration and the keys of its inputs."""
    text = canonical({"stage": stage, "version": version, "what": what, "inputs": inputs}, stage)
    return hashlib.sha256(text.encode()).hexdigest()


def flatten(what: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the values of a nested configuration, keyed by dotted field name."""
    flat: dict[str, Any] = {}
    for key, value in what.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Lists the differences of two configurations, such as `training.learning_rate: 0.0005 -> 0.0001`."""
    before, after = flatten(old), flatten(new)
    return [
        f"{name}: {' -> '.join(_short(before, after, name))}"
        for name in sorted(before.keys() | after.keys())
        if (name in before) != (name in after) or canonical(before[name]) != canonical(after[name])
    ]


SHOWN = 40
"""Maximum number of characters that are shown of a value in a list of differences."""


def _short(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Formats the old and the new value of a field. Long values begin shortly before their first difference."""
    old, new = (_text(fields, name) for fields in (before, after))
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    begin = same - 10 if max(len(old), len(new)) > SHOWN and same > SHOWN // 2 else 0
    return _cut(old, begin), _cut(new, begin)


def _text(fields: Mapping[str, Any], name: str) -> str:
    if name not in fields:
        return "(not there)"
    value = fields[name]
    is_digest = isinstance(value, str) and len(value) == 64 and re.fullmatch("[0-9a-f]*", value)
    return f"{value[:8]}…" if is_digest else json.dumps(value)


def _cut(text: str, begin: int) -> str:
    """Cuts a text to SHOWN characters from `begin` on. An ellipsis marks each cut."""
    rest = f"…{text[begin + 1 :]}" if begin else text
    return rest if len(rest) <= SHOWN else f"{rest[: SHOWN - 1]}…"


RECORDED = ("dontstop", "torch", "transformers", "tokenizers", "deepspeed", "ray", "datasets", "pyarrow", "numpy")
"""Packages whose versions every record contains."""
DECIDING = {
    "ftfy": 3,  # heuristics that repair characters; 6.0.2 and 6.1.1 changed them
    "py3langid": 3,  # the package contains its language identification model
    "rensa": 3,  # hash functions that decide which documents are near-duplicates
    "tokenizers": 2,  # follows the format of tokenizer files; patch releases only fix bugs
    "scikit-learn": 2,  # definition of words, search of nearest neighbours, and convergence of regressions
    "faiss-cpu": 2,  # algorithms for centroids, codes and graphs
    "optuna": 2,  # its samplers propose the trials of a search
    "resiliparse": 3,  # rules that find the main text of web pages
    "pypdfium2": 3,  # contains PDFium, which decides on spaces and the order of text
    "pylatexenc": 2,  # tables of what macros become
    "docutils": 2,  # rules of reStructuredText
    "markdown-it-py": 2,  # rules of Markdown
    "lm-eval": 3,  # prompts, metrics and filters of its tasks
    "mteb": 3,  # tasks, and how their scores are computed
    "peft": 2,  # chooses positions and initial values of low-rank adapters
}
"""Packages of which some releases computed other results, with the number of leading parts of the version that enter
keys."""


def deciding(*packages: str) -> dict[str, dict[str, str]]:
    """Returns the versions of packages that affect a stage's result, for its `what`. The packages are not imported."""
    counted = {package: ".".join(_version(package).split(".")[: DECIDING[package]]) for package in packages}
    return {"packages": counted} if counted else {}


def ran_with() -> dict[str, str]:
    """Returns the installed versions of all packages that may have affected a stage, for its record."""
    versions = {package: _version(package) for package in dict.fromkeys((*RECORDED, *DECIDING))}
    return {package: version for package, version in versions.items() if version}


@cache
def say_untried() -> None:
    """Logs once per process which packages are installed in versions that dontstop was not tested with."""
    for line in untried():
        log(f"{line}; dontstop doctor says what to install")


@cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""  # not installed: dontstop in a source tree, or an extra, for which stages raise an error
