"""Freed memory stays with the process, and is used again, also by a thread."""

import os
import subprocess
import sys

from adapt.ray.runtime import PROCESS_ENVIRONMENT

SCRIPT = """
import resource, sys
from pathlib import Path
from threading import Thread
from adapt.train.allocator import keep_freed_memory

def count():
    faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(80_000_000)  # written, and freed
    before = faults()
    for _ in range(5):
        bytearray(80_000_000)
    print(faults() - before)

if "keep" in sys.argv:
    keep_freed_memory()
thread = Thread(target=count)
thread.start() if "thread" in sys.argv else count()
"""


def faults(*how: str, **environment: str) -> int:
    """Pages that the kernel had to bring for five large blocks, one after another."""
    known = {name: value for name, value in os.environ.items() if name not in PROCESS_ENVIRONMENT}
    command = [sys.executable, "-c", SCRIPT, *how]
    return int(subprocess.run(command, env=known | environment, capture_output=True, text=True, check=True).stdout)


def test_large_blocks_are_used_again() -> None:
    assert faults("keep") < 1000 < faults()


def test_a_thread_uses_them_again_where_all_threads_share_one_arena() -> None:
    assert faults("keep", "thread", **PROCESS_ENVIRONMENT) < 1000 < faults("keep", "thread")
