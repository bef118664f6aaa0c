"""Replaces `dontstop` and `python` in a page's shell: runs the command in a forked process and prints its output.

The first argument is the replaced command. For `python` without a script, it starts the real Python.
"""

import json
import os
import socket
import sys

name, *arguments = sys.argv[1:]
if name == "python" and not (arguments and arguments[0].endswith(".py")):
    os.execv(os.environ["DOCS_PYTHON"], ["python", *arguments])
asked = json.dumps({"name": name, "arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)})
with socket.socket(socket.AF_UNIX) as server:
    server.connect(f"\0{os.environ['DOCS_SERVER']}")
    server.sendall(asked.encode())
    server.shutdown(socket.SHUT_WR)
    answer = json.loads(server.makefile("rb").read())
sys.stdout.write(answer["out"])
sys.stderr.write(answer["err"])
sys.exit(answer["code"])
