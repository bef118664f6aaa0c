"""Seals of checkpoints: lists of files with sizes and digests, signed with the user's key.

Each rank seals its share. A checkpoint is whole when every rank's seal is there and every file has its size. It is
loaded only if, in addition, the seals are signed by this user's key for this run and step, there are no other files,
and every file has its digest. So what somebody else put there is never read, and a flipped bit is noticed.

Seals of earlier versions hold sizes alone, unsigned. Such a checkpoint is accepted if none of its files has changed
since the key was made.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from adapt.runner.digest import changed_files, named_faults, sha256_of_all
from adapt.runner.files import write_atomically
from adapt.runner.key import canonical
from adapt.runner.secret import Secret


def sealed_run(folder: Path, name: str) -> str:
    """Returns the identity of a run: the digits of the stage's key that its folder is named by, and the run's name."""
    return f"{folder.name.rsplit('-', 1)[-1]}/{name}"


@dataclass(frozen=True)
class Sealing:
    """Signs the checkpoints of one run, and recognizes them."""

    secret: Secret
    run: str
    """Identity of the run. A checkpoint of another run that is put in its place is refused."""

    def text(self, seal: str, checkpoint: str, files: Mapping[str, tuple[int, str]]) -> str:
        """Returns the text that is signed.

        Args:
            seal: name of the seal's file, which says rank and number of ranks.
            checkpoint: name of the checkpoint's folder.
            files: size [bytes] and SHA-256, by name.
        """
        return canonical({"run": self.run, "checkpoint": checkpoint, "seal": seal, "files": files})


@dataclass(frozen=True)
class Seal:
    """What a rank wrote of its share."""

    sizes: Mapping[str, int]
    """Sizes of its files [bytes], by their path in the checkpoint."""
    digests: Mapping[str, str]
    """SHA-256 of its files; empty in seals of earlier versions."""
    signature: str
    """Empty in seals of earlier versions."""

    @classmethod
    def read(cls, file: Path) -> "Seal":
        """Reads a seal.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no seal.
        """
        try:
            content = json.loads(file.read_text())
            if "files" not in content:
                return cls({name: int(size) for name, size in content.items()}, {}, "")
            files = {str(name): (int(size), str(digest)) for name, (size, digest) in content["files"].items()}
            signature = str(content["signature"])
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{file} is no seal") from error
        return cls(
            {name: size for name, (size, _) in files.items()},
            {name: digest for name, (_, digest) in files.items()},
            signature,
        )

    @property
    def files(self) -> dict[str, tuple[int, str]]:
        """Size and digest of each file."""
        return {name: (size, self.digests[name]) for name, size in self.sizes.items()}


def seal_files(checkpoint: Path) -> list[Path]:
    """The files of a checkpoint that are seals."""
    return sorted(checkpoint.glob("seal-*-of-*.json"))


def write_seal(folder: Path, rank: int, world: int, checkpoint: str, sealing: Sealing) -> None:
    """Seals a rank's share of a checkpoint, as the last thing that the rank writes there.

    Args:
        folder: the share.
        rank: of this process.
        world: number of ranks.
        checkpoint: name of the folder in which the shares of all ranks will be.
        sealing: of the run.
    """
    seals = seal_files(folder)
    names = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and file not in seals]
    _sign(folder, f"seal-{rank}-of-{world}.json", names, checkpoint, sealing)


def reseal(folder: Path, checkpoint: str, sealing: Sealing, changed: str = "") -> None:
    """Seals a whole checkpoint, or a copy, anew. Its files are as they were sealed, but for the one that was changed.

    Args:
        folder: the copy.
        checkpoint: name of the folder in which it will be.
        sealing: of the run that it will belong to.
        changed: name of the file that was changed, if any.
    """
    for file in seal_files(folder):
        seal = Seal.read(file)
        known = {name: digest for name, digest in seal.digests.items() if name != changed}
        _sign(folder, file.name, list(seal.sizes), checkpoint, sealing, known)


def _sign(
    folder: Path, seal: str, names: list[str], checkpoint: str, sealing: Sealing, known: Mapping[str, str] | None = None
) -> None:
    """Writes a seal over files. `known` holds digests that need no computing."""
    digests = {**(known or {}), **sha256_of_all(folder, sorted(set(names) - set(known or {})))}
    files = {name: ((folder / name).stat().st_size, digests[name]) for name in sorted(names)}
    signature = sealing.secret.sign(sealing.text(seal, checkpoint, files))
    write_atomically(folder / seal, json.dumps({"files": files, "signature": signature}))


def forgery_in(checkpoint: Path, sealing: Sealing) -> str | None:
    """Returns why a whole checkpoint is not one that this user's job wrote for this run; None if it is.

    The content of its files is not read: see `content_faults`.
    """
    listed = set()
    for file in seal_files(checkpoint):
        seal = Seal.read(file)
        listed |= {file.name, *seal.sizes}
        if not seal.signature:
            newest = max((checkpoint / name).stat().st_ctime for name in [file.name, *seal.sizes])
            if sealing.secret.since is None or newest >= sealing.secret.since:
                return f"{file.name} is not signed"
        elif not sealing.secret.has_signed(sealing.text(file.name, checkpoint.name, seal.files), seal.signature):
            return f"{file.name} is not signed by this user's key for this run and step"
    for file in checkpoint.rglob("*"):
        name = str(file.relative_to(checkpoint))
        if file.is_symlink():
            return f"{name} is a link"
        if name not in listed and not file.is_dir() and not name.startswith("."):
            return f"{name} is in no seal"
    return None


def digests_of(checkpoint: Path) -> dict[str, str]:
    """Returns the SHA-256 of all files of a checkpoint, as sealed; nothing for files that earlier versions sealed."""
    return {name: digest for file in seal_files(checkpoint) for name, digest in Seal.read(file).digests.items()}


def content_fault(checkpoint: Path, digests: Mapping[str, str]) -> str | None:
    """Reads files of a checkpoint, and returns what has changed since they were sealed; None if nothing has."""
    return named_faults(changed_files(checkpoint, digests)) or None
