"""Runs commands in forks of a process that has loaded their common modules, which takes most of their time.

python -m tests.jobs.forks

reads one order per line as JSON, and answers with the exit code of each command.
"""

import atexit
import json
import os
import runpy
import sys
from contextlib import suppress
from pathlib import Path

import adapt.job.job_run  # noqa: F401
from adapt.job.registry import JOBS
from adapt.parse import parse
from adapt.support.errors import ConfigError


def become(folder: str, environment: dict[str, str], files: list[str], script: str, arguments: list[str]) -> None:
    """Turns this process into that of a script, then records the packages that it has loaded.

    Args:
        folder: the working directory.
        environment: all environment variables.
        files: for stdout, stderr and the packages.
        script: the main program.
        arguments: of its command line.
    """
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, file in enumerate([os.devnull, *files[:2]]):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = [script, *arguments]
    atexit.register(lambda: Path(files[2]).write_text("\n".join({name.split(".")[0] for name in sys.modules})))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    for name in ("dapt", "tapt", "finetune"):
        with suppress(ConfigError):
            parse([], f"jobs/{name}.py", JOBS[name].kind)  # parsing caches the parser
    for line in sys.stdin:
        process = os.fork()
        if not process:
            become(*json.loads(line))
            break
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
