"""Seals checkpoints with a key for tests."""

from pathlib import Path

from adapt.runner.secret import Secret
from adapt.train.checkpoints.stored_checkpoints import Sealing, write_seal

SEALING = Sealing(Secret(b"the key of all tests"), "demo/1a1a1a1a")


def seal(folder: Path, rank: int = 0, world: int = 1, name: str = "", sealing: Sealing = SEALING) -> None:
    """Seals a rank's share of a checkpoint. If `name` is empty, the folder's name is used."""
    write_seal(folder, rank, world, name or folder.name, sealing)
