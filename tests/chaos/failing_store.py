"""Makes every third write of this process fail while a control file exists.

A process imports this module before its work (`FORKS_IMPORT`, see `tests.forks.process`). Then every third write below
the storage root raises an input/output error. Opening a file for writing, renaming, linking and creating count as
writes. The environment variable `FAILING_STORE` names the control file, which contains the storage root.
"""

import errno
import os
import sys
import time

VARIABLE = "FAILING_STORE"
EVERY = 3
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_LOOK_S = 0.05


class Failing:
    """An audit hook. Python calls it before each operation on files."""

    def __init__(self, control: str) -> None:
        self._control, self._root, self._looked, self._count = control, "", 0.0, 0

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        """Raises OSError for every third write below the root."""
        if event == "open":
            path, _, flags = arguments
            if not (isinstance(path, str) and isinstance(flags, int) and flags & _WRITES):
                return
        elif event in ("os.rename", "os.link", "os.mkdir"):
            path = arguments[0]
        else:
            return
        root = self._root_now()
        if root and os.fspath(path).startswith(root):  # type: ignore[call-overload]
            self._count += 1
            if self._count % EVERY == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def _root_now(self) -> str:
        if time.monotonic() - self._looked > _LOOK_S:
            self._looked = time.monotonic()
            try:
                descriptor = os.open(self._control, os.O_RDONLY)
            except OSError:
                self._root = ""
            else:
                self._root = os.read(descriptor, 4096).decode()
                os.close(descriptor)
        return self._root


if VARIABLE in os.environ:
    sys.addaudithook(Failing(os.environ[VARIABLE]))
