"""Seals of checkpoints: lists of files with sizes and digests, signed with the user's key.

Each rank seals its share. A checkpoint is whole if the seals of all ranks exist and every file has the listed size. A
whole checkpoint is loaded only if, in addition, the seals are signed by this user's key for this run and step, there
are no other files, and every file has the listed digest. Files of other users are therefore never read, and a flipped
bit is detected.

Seals of earlier versions contain only sizes and have no signature. Such a checkpoint is accepted if none of its files
has changed since the key was created.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from adapt.runner.digest import changed_files, named_faults, sha256_of_all
from adapt.runner.files import write_atomically
from adapt.runner.secret import Secret
from adapt.runner.stage import canonical


def sealed_run(folder: Path, name: str) -> str:
    """Returns the identity of a run: the digits of the stage's key from the name of `folder`, and the run's name."""
    return f"{folder.name.rsplit('-', 1)[-1]}/{name}"


@dataclass(frozen=True)
class Sealing:
    """Signs the checkpoints of one run, and verifies their signatures."""

    secret: Secret
    run: str
    """Identity of the run. Checkpoints that were copied from another run are refused."""

    def text(self, seal: str, checkpoint: str, files: Mapping[str, tuple[int, str]]) -> str:
        """Returns the text that is signed.

        Args:
            seal: name of the seal's file, which contains the rank and the number of ranks.
            checkpoint: name of the checkpoint's folder.
            files: size [bytes] and SHA-256 of each file, keyed by name.
        """
        return canonical({"run": self.run, "checkpoint": checkpoint, "seal": seal, "files": files})


@dataclass(frozen=True)
class Seal:
    """List of the files in a rank's share of a checkpoint."""

    sizes: Mapping[str, int]
    """Size of each file [bytes], keyed by its path in the checkpoint."""
    digests: Mapping[str, str]
    """SHA-256 of each file, keyed by its path. Empty in seals of earlier versions."""
    signature: str
    """Signature of the list. Empty in seals of earlier versions."""

    @classmethod
    def read(cls, file: Path) -> "Seal":
        """Reads a seal.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is not a seal.
        """
        try:
            content = json.loads(file.read_text())
            if "files" not in content:
                return cls({name: int(size) for name, size in content.items()}, {}, "")
            files = {str(name): (int(size), str(digest)) for name, (size, digest) in content["files"].items()}
            signature = str(content["signature"])
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{file} is not a seal") from error
        return cls(
            {name: size for name, (size, _) in files.items()},
            {name: digest for name, (_, digest) in files.items()},
            signature,
        )

    @property
    def files(self) -> dict[str, tuple[int, str]]:
        """Size [bytes] and digest of each file, keyed by its path in the checkpoint."""
        return {name: (size, self.digests[name]) for name, size in self.sizes.items()}


def seal_files(checkpoint: Path) -> list[Path]:
    """Lists the seals of a checkpoint."""
    return sorted(checkpoint.glob("seal-*-of-*.json"))


def write_seal(folder: Path, rank: int, world: int, checkpoint: str, sealing: Sealing) -> None:
    """Seals a rank's share of a checkpoint. The seal must be the last file that the rank writes.

    Args:
        folder: folder with the rank's files.
        rank: rank of this process.
        world: number of ranks.
        checkpoint: name of the folder in which the shares of all ranks will be stored.
        sealing: signs the seal for the run.
    """
    seals = seal_files(folder)
    names = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and file not in seals]
    _sign(folder, f"seal-{rank}-of-{world}.json", names, checkpoint, sealing)


def reseal(folder: Path, checkpoint: str, sealing: Sealing, changed: str = "") -> None:
    """Replaces the seals of a whole checkpoint, or of its copy, for another run or after a change of one file.

    The digests of all other files are taken from the old seals.

    Args:
        folder: the checkpoint or its copy.
        checkpoint: name of the folder in which the checkpoint will be stored.
        sealing: signs the seals for the run to which the checkpoint will belong.
        changed: name of the changed file. Empty if no file was changed.
    """
    for file in seal_files(folder):
        seal = Seal.read(file)
        known = {name: digest for name, digest in seal.digests.items() if name != changed}
        _sign(folder, file.name, list(seal.sizes), checkpoint, sealing, known)


def _sign(
    folder: Path, seal: str, names: list[str], checkpoint: str, sealing: Sealing, known: Mapping[str, str] | None = None
) -> None:
    """Writes the seal of some files. Files with a digest in `known` are not read."""
    digests = {**(known or {}), **sha256_of_all(folder, sorted(set(names) - set(known or {})))}
    files = {name: ((folder / name).stat().st_size, digests[name]) for name in sorted(names)}
    signature = sealing.secret.sign(sealing.text(seal, checkpoint, files))
    write_atomically(folder / seal, json.dumps({"files": files, "signature": signature}))


def forgery_in(checkpoint: Path, sealing: Sealing) -> str | None:
    """Returns the reason why this user's job cannot have written a whole checkpoint for this run, else None.

    The content of files is not read: see `content_fault`.
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
    """Reads the SHA-256 of all files of a checkpoint from its seals. Seals of earlier versions have no digests."""
    return {name: digest for file in seal_files(checkpoint) for name, digest in Seal.read(file).digests.items()}


def content_fault(checkpoint: Path, digests: Mapping[str, str]) -> str | None:
    """Describes the files of a checkpoint whose content does not match `digests`. Returns None if all files match."""
    return named_faults(changed_files(checkpoint, digests)) or None
