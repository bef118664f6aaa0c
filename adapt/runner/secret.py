"""Signs files with the user's secret key, so that files that other users wrote to the storage root are recognized."""

import hashlib
import hmac
import os
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from adapt.runner.files import ASIDE, storage_errors
from adapt.runner.lock import locked
from adapt.runner.mirror import mirror_at
from adapt.support.errors import ConfigError, StorageError
from adapt.terminal.console import log, say_once

VARIABLE = "DONTSTOP_KEY"
"""Environment variable with a key that is used instead of the key file."""
_FEWEST = 16
"""Minimum length of a key [characters]."""
_BUCKET_KEY = "bucket-key"
"""Name of the file in the folder `dontstop` of the user's configuration."""


@dataclass(frozen=True)
class Secret:
    """A key that signs texts."""

    key: bytes = field(repr=False)

    def sign(self, text: str) -> str:
        """Returns the HMAC-SHA-256 (hexadecimal) of a text."""
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()

    def has_signed(self, text: str, signature: str) -> bool:
        """Returns whether a signature is the signature of a text by this key."""
        return hmac.compare_digest(self.sign(text), signature)


def secret_of(root: Path) -> Secret:
    """Returns the user's key for a storage root. Creates a key if there is none.

    The key is the value of DONTSTOP_KEY, or else the content of the file `key_file`. Only the user may read this file.
    Every node that mounts the storage for the same user has the same key.

    Args:
        root: storage root, which must exist.

    Raises:
        ConfigError: DONTSTOP_KEY is too short.
        StorageError: the file belongs to another user, contains no key, or cannot be read or written.
    """
    if value := os.environ.get(VARIABLE):
        if len(value) < _FEWEST:
            raise ConfigError(
                f"{VARIABLE} has {len(value)} characters, and a key needs at least {_FEWEST}",
                f'set it to a random text: export {VARIABLE}="$(openssl rand -hex 32)"',
            )
        return Secret(value.encode())
    file = key_file(root)
    if mirror_at(root):
        say_once(
            f"checkpoints are signed with the key in {file}; set {VARIABLE} to its content on other machines, so that"
            " they can continue the training"
        )
    with storage_errors(file):
        if not os.path.lexists(file):
            with locked(file, waits_for=lambda _: None):  # another process makes the key in milliseconds
                if not os.path.lexists(file):
                    _make(file)
        return _read(file)


def key_file(root: Path) -> Path:
    """Returns the path of the file with the user's key for a storage root. The file may not exist.

    For a folder, this is `.key-UID` in the folder. For a bucket, it is `~/.config/dontstop/bucket-key`, because the
    local copy of a bucket may be deleted. If the local copy contains a key, or the user's configuration cannot be
    written, it is `.key-UID` in the local copy.
    """
    file = root / f".key-{os.getuid()}"
    if mirror_at(root) is None or os.path.lexists(file):
        return file
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) / "dontstop"
    if not folder.is_absolute():  # the user has no home folder
        return file
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return file
    return folder / _BUCKET_KEY if os.access(folder, os.W_OK | os.X_OK) else file


def _make(file: Path) -> None:
    """Makes the key. The caller holds the lock, so temporary files belong to killed processes and are removed."""
    for abandoned in list(file.parent.glob(f".{file.name}.*{ASIDE}")):
        abandoned.unlink(missing_ok=True)
    # mkstemp creates files that only this user may read
    descriptor, aside = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=ASIDE)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(secrets.token_hex(32))
        opened.flush()
        os.fsync(descriptor)
    os.rename(aside, file)


def _read(file: Path) -> Secret:
    with tempfile.TemporaryFile(dir=file.parent) as own:  # a new file shows which id this user has on the file system
        owner = os.fstat(own.fileno()).st_uid
    if file.is_symlink() or not file.is_file() or file.lstat().st_uid != owner:
        raise StorageError(
            f"{file} is not a regular file that belongs to this user, so it cannot be trusted as the key that signs"
            " checkpoints",
            f"delete it, or set {VARIABLE} in the environment",
        )
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW)) as opened:
        if os.fstat(opened.fileno()).st_mode & 0o077:
            os.fchmod(opened.fileno(), 0o600)
        found = os.fstat(opened.fileno())
        key = opened.read().strip()
    if len(key) < _FEWEST or found.st_uid != owner:
        raise StorageError(
            f"{file} holds no key",
            "delete it: a new key is created, and checkpoints signed with the old one are refused",
        )
    if found.st_mode & 0o077:
        log(
            f"warning: other users can read {file}, because its file system does not support permissions. They could "
            f"forge checkpoints; set {VARIABLE} in the environment"
        )
    return Secret(key.encode())
