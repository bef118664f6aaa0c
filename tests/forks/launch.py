"""Requests a forked worker or agent. A raylet runs this program instead of Python to start its workers and agents.

`tests.forks.process` answers the request. After a request for a worker, this program ends immediately. After a request
for an agent, it ends when the agent ends, because the raylet watches this program.
"""

import json
import os
import socket
import sys

ENVIRONMENT = "--serialized-runtime-env-context="

python, name = os.environ.pop("FORKS_PYTHON"), os.environ.pop("FORKS_AT")
is_agent = sys.argv[1] == "-u"  # the raylet's command for agents is `python -u SCRIPT`, without -u for workers
script, *arguments = sys.argv[1 + is_agent :]
# sets environment variables and selects the program to run, as setup_worker.py would
if script.endswith("setup_worker.py"):
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
    if is_agent:
        asked.shutdown(socket.SHUT_WR)
        asked.recv(1)  # waits until the agent ends, which closes the other end of the socket
