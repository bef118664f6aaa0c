"""Runs commands in forks of a process that has already loaded the modules that most commands need. This saves time.

python -m tests.jobs.forks

The process reads one command per line as JSON, and writes the exit code of each command.
"""

import atexit
import json
import os
import runpy
import sys
from contextlib import suppress
from pathlib import Path

import adapt.job.job_run  # noqa: F401
from adapt.job import JOBS
from adapt.parse import parse
from adapt.support.errors import ConfigError


def become(folder: str, environment: dict[str, str], files: list[str], script: str, arguments: list[str]) -> None:
    """Runs a script as the main program of this process, and then records the packages that the script has loaded.

    Args:
        folder: working directory of the script.
        environment: all environment variables of the script.
        files: paths of the files for stdout, for stderr, and for the names of the packages.
        script: path of the script.
        arguments: arguments of the script.
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
            parse([], f"jobs/{name}.py", JOBS[name].kind)  # Parsing fills the cache of the parser.
    for line in sys.stdin:
        process = os.fork()
        if not process:
            become(*json.loads(line))
            break
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
