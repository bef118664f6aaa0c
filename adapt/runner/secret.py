"""The secret that tells files a user's own jobs wrote from files that somebody else put into the storage root."""

import hashlib
import hmac
import os
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from adapt.runner.files import ASIDE, storage_errors
from adapt.runner.lock import locked
from adapt.support.errors import ConfigError, StorageError
from adapt.terminal.console import log

VARIABLE = "DONTSTOP_KEY"
"""Environment variable that replaces the key file."""
_FEWEST = 16
"""Fewest characters of a key."""


@dataclass(frozen=True)
class Secret:
    """A key, and what it signs."""

    key: bytes = field(repr=False)
    since: float | None = None
    """When the key was made [s since 1970]. Files that have not changed since then may be unsigned. None: unknown."""

    def sign(self, text: str) -> str:
        """Returns the HMAC-SHA-256 (hexadecimal) of a text."""
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()

    def has_signed(self, text: str, signature: str) -> bool:
        """Checks whether a signature is that of a text."""
        return hmac.compare_digest(self.sign(text), signature)


def secret_of(root: Path) -> Secret:
    """Returns the user's key for a storage root, and makes the key where there is none.

    The key is the value of DONTSTOP_KEY, or else the file `.key-UID` in the storage root. That file belongs to the user
    and nobody else may read it, so every node that mounts the storage as the same user finds the same key.

    Args:
        root: the storage root, which exists.

    Raises:
        ConfigError: DONTSTOP_KEY is too short.
        StorageError: the file belongs to another user, holds no key, or cannot be read or written.
    """
    if value := os.environ.get(VARIABLE):
        if len(value) < _FEWEST:
            raise ConfigError(
                f"{VARIABLE} has {len(value)} characters, and a key needs at least {_FEWEST}",
                f'set it to a random text: export {VARIABLE}="$(openssl rand -hex 32)"',
            )
        return Secret(value.encode())
    file = root / f".key-{os.getuid()}"
    with locked(file), storage_errors(file):
        if not os.path.lexists(file):
            _make(file)
        return _read(file)


def _make(file: Path) -> None:
    descriptor, aside = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=ASIDE)  # mode 0600
    with os.fdopen(descriptor, "w") as opened:
        opened.write(secrets.token_hex(32))
        opened.flush()
        os.fsync(descriptor)
    os.rename(aside, file)


def _read(file: Path) -> Secret:
    with tempfile.TemporaryFile(dir=file.parent) as own:  # what the file system calls us: it may map users
        owner = os.fstat(own.fileno()).st_uid
    if file.is_symlink() or not file.is_file() or file.lstat().st_uid != owner:
        raise StorageError(
            f"{file} is not a file of this user, so it cannot be trusted as the key that signs checkpoints",
            f"delete it, or set {VARIABLE} in the environment",
        )
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW)) as opened:
        if os.fstat(opened.fileno()).st_mode & 0o077:
            os.fchmod(opened.fileno(), 0o600)
        found = os.fstat(opened.fileno())
        key = opened.read().strip()
    if len(key) < _FEWEST or found.st_uid != owner:
        raise StorageError(
            f"{file} holds no key", "delete it: a new one is made, and checkpoints signed by the old one are refused"
        )
    if found.st_mode & 0o077:
        log(
            f"warning: others can read {file}, as its file system keeps no permissions; set {VARIABLE} in the "
            "environment, or they can forge checkpoints"
        )
    return Secret(key.encode(), found.st_mtime)
