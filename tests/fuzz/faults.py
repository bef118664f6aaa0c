"""Causes faults while a random job (a world) runs: a full disk, a kill, a lost or changed file, a lost output."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fuzz.driver import Ran

FAULTS = ("full", "killed", "gone", "shorter", "other")


class Killed(BaseException):
    """Simulates the kill of the process."""


@contextmanager
def fault(draw: Random, data: Path, root: Path) -> Iterator[str]:
    """Causes one fault when a random file below a root is renamed into place."""
    kind, when, calls = draw.choice(FAULTS), draw.randrange(12), 0
    victim, real = draw.choice(sorted(data.iterdir())), os.replace

    def replace(source: Any, target: Any, **options: Any) -> None:
        nonlocal calls
        if Path(target).is_relative_to(root):
            calls += 1
            if calls == when + 1:
                _strike(kind, victim)
        real(source, target, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", replace)
        yield f"{kind} at {when}, {victim.name}"


def _strike(kind: str, victim: Path) -> None:
    if kind == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if kind == "killed":
        raise Killed
    content = victim.read_bytes() if victim.exists() else b""
    if kind == "gone":
        victim.unlink(missing_ok=True)
    else:
        victim.write_bytes(content[: len(content) // 2] if kind == "shorter" else content[::-1])


def lose(draw: Random, ran: Ran) -> str:
    """Deletes or empties a shard of prepared text.

    Deletes the stages that depend on prepared text, so that they must run again.
    """
    shards = [file for record in ran.of("prepare") for file in sorted(record.path.glob("*.arrow"))]
    if not shards or not ran.of("train"):
        return "nothing"
    victim = draw.choice(shards)
    for record in ran.records.values():
        if record.stage not in ("manifest", "dedup", "prepare", "texts", "select", "task"):
            shutil.rmtree(record.path)
    if draw.random() < 0.5:
        victim.unlink()
        return f"{victim.name} is gone"
    victim.write_bytes(b"")
    return f"{victim.name} is empty"
