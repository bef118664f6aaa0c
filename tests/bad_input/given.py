"""Inputs of a job, and checks of its messages about wrong inputs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.samples import sentences

TEXTS = sentences(200)
LATER = {"training__max_steps": "null", "training__epochs": 1, "training__warmup_steps": 100}
"""A wrong setting that is detected only when the corpus is prepared. A job with this setting ends at that point."""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


def check(ran: Ran, code: int, *messages: str) -> None:
    """Checks that a job ended with exactly one error message and a fix, and printed nothing on stdout."""
    assert ran.code == code, ran.err
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.count("\n  fix: ") == ran.err.count("Error: ") == 1
    last = "\n".join(ran.err.splitlines()[-2:])
    for message in messages:
        assert message in last


def line(text: str) -> bytes:
    return json.dumps({"text": text}).encode() + b"\n"


def write(path: Path, *lines: bytes) -> None:
    path.write_bytes(b"".join(lines))


def record(folder: Path, stage: str) -> dict[str, Any]:
    (file,) = folder.glob(f"runs/{stage}/*/stage.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found
