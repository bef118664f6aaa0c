"""Requests a forked worker, and ends. A raylet runs this program in place of a worker's Python.

`tests.forks.process` answers the request.
"""

import json
import os
import socket
import sys

ENVIRONMENT = "--serialized-runtime-env-context="

python, name = os.environ.pop("FORKS_PYTHON"), os.environ.pop("FORKS_AT")
script, arguments = sys.argv[1], sys.argv[2:]
if script.endswith("setup_worker.py"):  # setup_worker.py sets environment variables, and then runs the next program
    (environment,) = (json.loads(each.removeprefix(ENVIRONMENT)) for each in arguments if each.startswith(ENVIRONMENT))
    variables, executable = environment.pop("env_vars"), environment.pop("py_executable")
    if any(environment.values()) or executable != python or "$" in "".join(variables.values()):
        os.execv(python, [python, script, *arguments])
    os.environ.update(variables)
    script, *arguments = (each for each in arguments if not each.startswith((ENVIRONMENT, "--language=")))
given = json.dumps([script, arguments, os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect(f"\0{name}")
    sent = socket.send_fds(asked, [given], [1, 2])
    asked.sendall(given[sent:])
