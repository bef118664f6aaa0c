"""Starts the program that parses documents, gives it documents, and replaces it when a document ends it."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict

from adapt.corpus.documents.document_kinds import CRASHED, TOO_SLOW, DocumentLimits
from adapt.corpus.files.formats import Bad

PROGRAM = "adapt.corpus.documents.document_reader"
_TIMERS = (signal.SIGPROF, signal.SIGALRM)
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
"""Environment variables that the program gets. Others may be secrets, which untrusted documents must not reach."""


class DocumentProcess:
    """The program that parses documents, as seen by the process that started it.

    The program ends when its standard input is closed, which happens at the latest when this process ends.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._requests = 0

    def read(self, kind: str, data: bytes, limits: DocumentLimits, encoding: str | None = None) -> list[str] | Bad:
        """Returns the texts of a document, or the reason why it cannot be read.

        The texts of a document with broken pages end with the reason `BROKEN_PAGES`, which counts the document.

        Args:
            kind: kind of the document; see `adapt.corpus.documents.document_reader.read_document`.
            data: content of the document, not compressed.
            limits: limits, and how the document is divided.
            encoding: encoding that a web server named; None if it is not known.
        """
        with self._lock:
            self._requests += 1
            asked = {
                "id": self._requests,
                "kind": kind,
                "size": len(data),
                "limits": asdict(limits),
                "encoding": encoding,
            }
            process = self._process = self._process or _started()
            assert process.stdin
            assert process.stdout
            try:
                process.stdin.write(json.dumps(asked).encode() + b"\n")
                process.stdin.write(data)
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = b""
            except BaseException:  # an interrupt: the answer that is still to come must not reach the next document
                self._killed()
                raise
            if not line.endswith(b"\n"):
                return Bad(TOO_SLOW if -self._ended() in _TIMERS else CRASHED)
            answer = json.loads(line)
            if answer.get("id") != asked["id"]:  # a malicious document made the program write this answer
                self._killed()
                return Bad(CRASHED)
        texts: list[str] = answer.get("texts", [])
        if "bad" not in answer:
            return texts
        return [*texts, Bad(answer["bad"])] if texts else Bad(answer["bad"])

    def close(self) -> None:
        """Ends the program."""
        with self._lock:
            if self._process:
                self._ended()

    def _killed(self) -> None:
        """Kills the program. It counts as ended even if another interrupt comes while it ends."""
        process, self._process = self._process, None
        if process:
            _end(process, kill=True)

    def _ended(self) -> int:
        """Waits until the program has ended, and returns its exit status. The next document starts it again."""
        process, self._process = self._process, None
        assert process
        return _end(process)


def _end(process: subprocess.Popen[bytes], kill: bool = False) -> int:
    """Closes the pipes of the program, waits until it has ended, and returns its exit status."""
    assert process.stdin
    assert process.stdout
    if kill:
        process.kill()
    with suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()
    return process.wait()


def _started() -> subprocess.Popen[bytes]:
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-P", "-m", PROGRAM]  # -P: does not import modules from the current folder
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )


_PROCESSES: dict[int, DocumentProcess] = {}


def document_process() -> DocumentProcess:
    """Returns the program that parses documents for this process. A forked process gets a separate program."""
    number = os.getpid()
    if number not in _PROCESSES:
        _PROCESSES.clear()
        _PROCESSES[number] = DocumentProcess()
    return _PROCESSES[number]
