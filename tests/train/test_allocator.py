"""Freed memory stays with the process, and is used again."""

import subprocess
import sys

SCRIPT = """
import resource, sys
from pathlib import Path
from adapt.train.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray(64_000_000)  # written, and freed
before = faults()
for _ in range(5):
    bytearray(64_000_000)
print(faults() - before)
"""


def faults(how: str) -> int:
    """Pages that the kernel had to bring for five large blocks, one after another."""
    output = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
    return int(output.stdout)


def test_large_blocks_are_used_again():
    assert faults("keep") < 1000 < faults("as it is")
